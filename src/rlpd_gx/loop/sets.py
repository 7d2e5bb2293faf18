"""Safe sets for states where the rules gave none that could be stored."""

import numpy as np

from rlpd_gx.safe_sets import Box, Intersection, Mask, ProductMask, SafeSet, Union
from rlpd_gx.types import Array


def everything(example: SafeSet) -> SafeSet:
    """The set of all actions of the space, in the same form as a Guardian's set."""
    if isinstance(example, Mask):
        return Mask(np.ones_like(example.allowed), start=example.start.tolist(), nvec=example.nvec)
    if isinstance(example, ProductMask):
        return ProductMask(np.ones_like(example.allowed), example.nvec)
    if isinstance(example, Union):
        return Union(*(everything(part) for part in example.parts))  # type: ignore[arg-type]
    assert isinstance(example, Intersection)
    space, *rules = example.parts
    return Intersection(space, *(rule.shifted(-np.inf) for rule in rules))


def only(example: SafeSet, action: Array) -> SafeSet:
    """The set of this one action, in the form of a Guardian's set.

    Where no action is allowed, or the rules could not be asked, the executed one is all a backup may count.
    """
    if isinstance(example, Mask):
        alone = Mask(np.zeros_like(example.allowed), start=example.start.tolist(), nvec=example.nvec)
        allowed = np.zeros(example.n, dtype=bool)
        allowed[alone._ids(np.asarray(action))[0]] = True
        return Mask(allowed, start=example.start.tolist(), nvec=example.nvec)
    if isinstance(example, ProductMask):
        entries = np.cumsum((0, *example.nvec[:-1])) + np.asarray(action)
        allowed = np.zeros(sum(example.nvec), dtype=bool)
        allowed[entries] = True
        return ProductMask(allowed, example.nvec)
    if isinstance(example, Union):
        return Union(*(only(part, action) for part in example.parts))  # type: ignore[arg-type]
    whole = everything(example)
    assert isinstance(whole, Intersection)
    return Intersection(Box(action, action), *whole.parts[1:])
