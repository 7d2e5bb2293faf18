"""HDF5 files that may be damaged or hostile: a dataset must be inside its file, and fit into it."""

import math
from pathlib import Path
from typing import Any

from rlpd_gx.errors import GxError
from rlpd_gx.trees import Json
from rlpd_gx.untrusted import check_size, reading

INSIDE = "copy the data into the file itself"


def datasets(file: Any, path: Path) -> Json:
    """Every `h5py.Dataset` of an open file by its name; links and storage outside the file are refused.

    A declared size must fit what is stored. Soft links point into the same file, so they need not be
    followed.
    """
    import h5py

    found: Json = {}
    seen, total, groups = set(), 0, [("", file)]
    while groups:
        prefix, group = groups.pop()
        for name in group:
            link, place = group.get(name, getlink=True), f"{prefix}{name}"
            if isinstance(link, h5py.ExternalLink):
                raise GxError(f"{path}: {place!r} is a link to the file {link.filename!r}; {INSIDE}")
            if not isinstance(link, h5py.HardLink):
                continue
            with reading(f"{path}: {place!r}"):
                node = group[name]
                address = h5py.h5o.get_info(node.id).addr
            if isinstance(node, h5py.Group):
                if address not in seen:  # a group may contain itself
                    seen.add(address)
                    groups.append((f"{place}/", node))
            elif isinstance(node, h5py.Dataset) and node.shape is not None:
                total += _declared(node, path, place)
                found[place] = node
    check_size(path, total, path.stat().st_size, packed=True)
    return found


def _declared(node: Any, path: Path, name: str) -> int:
    """The bytes a dataset declares, checked against those stored."""
    place = f"{path}: {name!r}"
    with reading(place):
        if node.is_virtual or node.external:
            raise GxError(f"{place} is stored in other files; {INSIDE}")
        size = math.prod(node.shape) * node.dtype.itemsize
        stored = min(int(node.id.get_storage_size()), path.stat().st_size)
        if node.chunks:
            check_size(place, max(size, math.prod(node.chunks) * node.dtype.itemsize), stored, packed=True)
        else:
            check_size(place, size, stored, packed=False)
    return size
