"""Safe sets for states where the rules gave none that could be stored."""

from rlpd_gx.safe_sets import SafeSet
from rlpd_gx.types import Array


def everything(example: SafeSet) -> SafeSet:
    """The set of all actions of the space, in the same form as a Guardian's set."""
    return example.everything()


def only(example: SafeSet, action: Array) -> SafeSet:
    """The set of this one action, in the form of a Guardian's set."""
    return example.only(action)
