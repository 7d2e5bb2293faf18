"""An exception that no command expected: where it happened, and in whose code, with a sentence at the end."""

import sysconfig
import traceback
from pathlib import Path

LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
OURS = str(Path(__file__).parents[1])
RETURNS = {
    "step": "`step` must return observation, reward, terminated, truncated and info",
    "reset": "`reset` must return observation and info",
}


def told(error: Exception) -> str:
    """The lines of the user's own code that led to it, if there are any, else all; then what to do."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((OURS, "<frozen", *LIBRARIES))]
    what = "".join(traceback.format_exception_only(error)).strip()
    if own:
        said = f"{Path(own[-1].filename).name}, line {own[-1].lineno}, in {own[-1].name}: {what}"
        return "".join(traceback.format_list(own)) + f"rlpd-gx: your own code failed: {said}"
    lines = "".join(traceback.format_list(frames)) + what
    wrong = isinstance(error, ValueError) and "values to unpack" in str(error)
    if wrong and (returns := RETURNS.get(frames[-1].name)):
        return f"rlpd-gx: {returns}: mend the environment"
    return f"{lines}\nrlpd-gx: this should not happen; please report the lines above with your command"
