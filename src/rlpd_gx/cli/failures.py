"""An exception that no command expected: where it happened, and in whose code, with a sentence at the end."""

import re
import traceback

import gymnasium as gym

from rlpd_gx.loading import own_frames, raised

CHECKER = "passive_env_checker.py"  # of Gymnasium: it looks at all that an environment returns
RETURNS = {
    "step": "`step` must return observation, reward, terminated, truncated and info",
    "reset": "`reset` must return observation and info",
}


def _wrong_environment(error: Exception, frame: traceback.FrameSummary) -> str:
    """What a user's environment does otherwise than Gymnasium demands; empty if it is not that."""
    text = str(error)
    if isinstance(error, ValueError) and "values to unpack" in text:
        return RETURNS.get(frame.name, "")
    if refused := re.match(r"(\S+)\.reset\(\) got an unexpected keyword argument '(seed|options)'", text):
        return (
            f"{refused[1]}.reset takes no {refused[2]}, and must be reset(self, *, seed=None, options=None)"
        )
    if frame.filename.endswith(CHECKER) and isinstance(error, AssertionError | gym.error.Error):
        returns = RETURNS["step" if "step" in text else "reset"]
        return text.rstrip(".") + ("" if "obs returned" in text else f"; {returns}")
    return ""


def told(error: Exception) -> str:
    """The lines of the user's own code that led to it, if there are any, else all; then what to do."""
    if own := own_frames(error):
        return "".join(traceback.format_list(own)) + f"rlpd-gx: your own code {raised(error)}"
    frames = traceback.extract_tb(error.__traceback__)
    if said := _wrong_environment(error, frames[-1]):
        return f"rlpd-gx: {said}: mend the environment"
    lines = "".join([*traceback.format_list(frames), *traceback.format_exception_only(error)])
    return f"{lines}rlpd-gx: this should not happen; please report the lines above with your command"
