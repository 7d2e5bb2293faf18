"""An exception that no command expected: where it happened, and in whose code, with a sentence at the end."""

import traceback

from rlpd_gx.loading import own_frames, raised

RETURNS = {
    "step": "`step` must return observation, reward, terminated, truncated and info",
    "reset": "`reset` must return observation and info",
}


def told(error: Exception) -> str:
    """The lines of the user's own code that led to it, if there are any, else all; then what to do."""
    if own := own_frames(error):
        return "".join(traceback.format_list(own)) + f"rlpd-gx: your own code {raised(error)}"
    frames = traceback.extract_tb(error.__traceback__)
    returns = RETURNS.get(frames[-1].name)
    if returns and isinstance(error, ValueError) and "values to unpack" in str(error):
        return f"rlpd-gx: {returns}: mend the environment"
    lines = "".join([*traceback.format_list(frames), *traceback.format_exception_only(error)])
    return f"{lines}rlpd-gx: this should not happen; please report the lines above with your command"
