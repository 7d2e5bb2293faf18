"""Nested dicts and tuples of arrays, walked in one place.

A tree is a leaf (a numpy array, a torch tensor, a number, a list of objects), or a dict or tuple of trees.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Tree = Any
DType = np.dtype[Any]
Json = dict[str, Any]  # a record or state that JSON can hold, or keyword arguments
JsonMapping = Mapping[str, Any]  # one that is only read


def map_leaves(function: Callable[..., Tree], tree: Tree, *others: Tree) -> Tree:
    """The tree of function(leaf, *other leaves); `others` have the structure of `tree`."""
    if type(tree) is np.ndarray:  # asking whether it is a Mapping would take longer than most functions
        return function(tree, *others)
    if isinstance(tree, Mapping):
        return {key: map_leaves(function, part, *(o[key] for o in others)) for key, part in tree.items()}
    if type(tree) is tuple:
        return tuple(map_leaves(function, *parts) for parts in zip(tree, *others, strict=True))
    return function(tree, *others)


def leaves(tree: Tree) -> Iterator[Tree]:
    """The leaves, left to right."""
    if isinstance(tree, Mapping) or type(tree) is tuple:
        for part in tree.values() if isinstance(tree, Mapping) else tree:
            yield from leaves(part)
    else:
        yield tree


def named_leaves(tree: Tree, name: str = "") -> dict[str, Tree]:
    """The leaves by their path, such as `camera/left`; a tree that is one leaf has the name given."""
    if not (isinstance(tree, Mapping) or type(tree) is tuple):
        return {name: tree}
    parts = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
    start = f"{name}/" if name else ""
    return {path: leaf for key, part in parts for path, leaf in named_leaves(part, f"{start}{key}").items()}


def stack(trees: Sequence[Tree]) -> Tree:
    """Trees of one structure as a tree of arrays with a new first axis."""
    if len(trees) == 1:  # called in each step of one environment: `np.stack` would take several times as long
        return map_leaves(lambda part: np.array(part)[None], trees[0])
    return map_leaves(lambda *parts: np.stack(parts), trees[0], *trees[1:])


def index(tree: Tree, key: object) -> Tree:
    """leaf[key] of every leaf."""
    return map_leaves(lambda leaf: leaf[key], tree)


class NotPlain(TypeError):
    """A value that is no tree of arrays, numbers and strings."""


def packed(tree: Tree) -> Tree:
    """A tree of plain values as arrays, JSON values and dicts: tuples, lists and dicts become `{kind: {key: value}}`.

    A file can keep that, and `unpacked` gives back what it was.
    """
    if isinstance(tree, np.ndarray | np.generic) and tree.dtype != object:
        return np.array(tree)  # numpy scalars too: they are promoted differently from Python numbers
    if tree is None or type(tree) in (bool, int, float, str):
        return tree
    if type(tree) in (tuple, list):
        return {type(tree).__name__: {str(i): packed(part) for i, part in enumerate(tree)}}
    if type(tree) is dict and all(isinstance(key, str) for key in tree):
        return {"dict": {key: packed(part) for key, part in tree.items()}}
    raise NotPlain(f"is a {type(tree).__name__}")


def unpacked(value: Tree) -> Tree:
    """The inverse of `packed`."""
    if isinstance(value, np.ndarray):
        return value.copy() if value.ndim else value[()]  # a scalar was a scalar
    if not isinstance(value, dict):
        return value
    ((kind, parts),) = value.items()
    each = {key: unpacked(part) for key, part in parts.items()}
    return each if kind == "dict" else {"tuple": tuple, "list": list}[kind](each.values())
