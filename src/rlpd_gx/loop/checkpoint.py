"""Checkpoints: whole or not at all, checksummed, without pickle."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes

from rlpd_gx.errors import GxError
from rlpd_gx.files import sha256, whole_folder
from rlpd_gx.trees import Json, JsonMapping, Tree

_TENSORS, _STATE, _MANIFEST = "tensors.safetensors", "state.json", "manifest.json"


@dataclass(frozen=True)
class Loaded:
    """What a checkpoint held."""

    step: int
    state: Json
    notes: tuple[str, ...]
    """A sentence for each newer checkpoint that could not be used."""


class Checkpoints:
    """The checkpoints of one run in a folder of their own: the newest `keep` and milestones, each a folder by itself.

    A state is a nested dict (or list) of torch tensors, numpy arrays and JSON values; tuples come back as lists.
    A checkpoint holds its tensors and arrays in one safetensors file, the rest in `state.json`, and the sha256 of
    both and of every other file it needs in `manifest.json`. Nothing that is complete is ever written to again.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 2) -> None:
        if keep < 1:
            raise GxError(f"at least one checkpoint must be kept, got keep={keep}")
        self.folder = Path(folder)
        self._keep = keep
        self._damaged: set[Path] = set()  # found by `load`; they give way to the next one that is saved

    def save(
        self,
        step: int,
        state: JsonMapping,
        files: Mapping[Path, str] | None = None,
        milestones: Iterable[int] = (),
    ) -> None:
        """Write a checkpoint, then remove those beyond `keep`; or leave all as it was, and raise.

        `files` are files outside that the state needs, with their sha256 (`Segments.files`): `load` checks them.
        The first checkpoint at or after each of the steps `milestones` is kept too.
        """
        tensors: dict[str, torch.Tensor] = {}
        tree = _without_tensors(state, "", tensors)
        contents = {
            _TENSORS: tensors_to_bytes(tensors),
            _STATE: json.dumps({"step": step, "state": tree}).encode(),
        }
        inside = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
        outside = {os.path.relpath(path, self.folder): digest for path, digest in (files or {}).items()}
        contents[_MANIFEST] = json.dumps(_manifest(inside, outside), indent=1).encode()
        name = f"{max(map(_number, self._all()), default=0) + 1:06d}-step-{step}"
        try:
            self._remove(self.folder.glob(".*"))  # left by a process that was killed
            with whole_folder(self.folder / name) as temporary:
                for file, content in contents.items():
                    (temporary / file).write_bytes(content)
        except GxError as error:
            what = str(error).rpartition(": ")[2]
            raise GxError(
                f"{self.folder}: the checkpoint of step {step} cannot be written ({what}); make room for it, then "
                "resume the run: the checkpoints before are untouched"
            ) from error
        complete = [path for path in self._all() if path not in self._damaged]
        after = [[path for path in complete if _step(path) >= milestone] for milestone in milestones]
        kept = {*complete[: self._keep], *(min(paths, key=_step) for paths in after if paths)}
        self._remove([*self._damaged, *(path for path in complete if path not in kept)])
        self._damaged.clear()

    def load(self, step: int | None = None) -> Loaded:
        """The newest checkpoint that is whole, or that of a step; tensors on the CPU, arrays as arrays."""
        if step is not None:
            paths = {_step(path): path for path in reversed(self._all())}
            if step not in paths:
                there = ", ".join(f"{known:,}" for known in sorted(paths)) or "none"
                raise GxError(f"{self.folder} holds no checkpoint of step {step:,}; there are: {there}")
            return Loaded(*self._read(paths[step]), ())
        notes: list[str] = []
        for path in self._all():
            try:
                step, state = self._read(path)
            except GxError as error:
                notes.append(f"{error}; the checkpoint before it is used instead")
                self._damaged.add(path)
            else:
                return Loaded(step, state, tuple(notes))
        found = "; ".join(note.partition(";")[0] for note in notes) or "none was written"
        raise GxError(
            f"{self.folder} holds no checkpoint that can be used: {found}; restore its files, or begin a new run"
        )

    def exist(self) -> bool:
        """Whether one was ever completed, damaged or not."""
        return bool(self._all())

    def files(self) -> set[Path]:
        """The files outside that some checkpoint here needs."""
        needed: set[Path] = set()
        for path in self._all():
            try:
                outside = json.loads((path / _MANIFEST).read_text())["outside"]
            except (OSError, ValueError, KeyError):
                continue  # damaged: `load` reports it
            needed |= {Path(os.path.normpath(self.folder / name)) for name in outside}
        return needed

    def _read(self, path: Path) -> tuple[int, Json]:
        try:
            manifest = json.loads((path / _MANIFEST).read_text())
            if manifest != _manifest(manifest["inside"], manifest["outside"]):
                raise ValueError("another checksum")
        except OSError as error:
            raise GxError(f"{path / _MANIFEST} cannot be read ({error.strerror or error})") from error
        except (ValueError, KeyError, TypeError) as error:
            raise GxError(f"{path / _MANIFEST} is damaged (it is not what was written)") from error
        for name, digest in manifest["inside"].items():
            _check(path / name, digest)
        for name, digest in manifest["outside"].items():
            _check(Path(os.path.normpath(self.folder / name)), digest)
        kept = json.loads((path / _STATE).read_bytes())
        tensors = tensors_from_bytes((path / _TENSORS).read_bytes())
        return kept["step"], _with_tensors(kept["state"], tensors)

    def _all(self) -> list[Path]:
        """Newest first."""
        found = [path for path in self.folder.glob("*-step-*") if re.fullmatch(r"\d+-step-\d+", path.name)]
        return sorted(found, key=_number, reverse=True)

    def _remove(self, paths: Iterable[Path]) -> None:
        """Take away folders under another name first: half of one must never look like a checkpoint.

        What cannot be removed stays: the checkpoint that was just written is good all the same.
        """
        for path in paths:
            with suppress(OSError):
                hidden = path if path.name.startswith(".") else path.rename(path.with_name(f".{path.name}"))
                shutil.rmtree(hidden, ignore_errors=True)


def _number(path: Path) -> int:
    return int(path.name.partition("-")[0])


def _step(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _manifest(inside: Mapping[str, str], outside: Mapping[str, str]) -> Json:
    """Checksums of all files by their path from the checkpoint, or from the folder of all, and of themselves."""
    both = json.dumps([inside, outside]).encode()
    return {"inside": inside, "outside": outside, "sha256": hashlib.sha256(both).hexdigest()}


def _check(path: Path, digest: str) -> None:
    """Raise unless a file is what was written."""
    try:
        found = sha256(path)
    except OSError as error:
        raise GxError(f"{path} cannot be read ({error.strerror or error})") from error
    if found != digest:
        raise GxError(f"{path} is damaged (its sha256 differs from the one in the manifest)")


def _without_tensors(value: Tree, where: str, tensors: dict[str, torch.Tensor]) -> Tree:
    """A state as JSON can hold it. Tensors go into `tensors`; `{"$kind": name}` stays in their place."""
    name = f"{len(tensors)}{where}"  # the number keeps names apart whatever the keys are
    if isinstance(value, torch.Tensor):
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"$tensor": name}
    if isinstance(value, np.ndarray):
        try:
            tensors[name] = torch.from_numpy(value.copy(order="C"))
        except (TypeError, ValueError):
            raise GxError(
                f"the state at {where} is an array of {value.dtype}, which cannot be kept"
            ) from None
        return {"$array": name}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        items = [(key, _without_tensors(part, f"{where}/{key}", tensors)) for key, part in value.items()]
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return dict(items)
        return {"$items": items}  # keys that JSON would turn into strings, as in an optimizer's state
    if isinstance(value, list | tuple):
        return [_without_tensors(part, f"{where}/{place}", tensors) for place, part in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise GxError(f"the state at {where} is a {type(value).__name__}, which cannot be kept")


def _with_tensors(value: Tree, tensors: Mapping[str, torch.Tensor]) -> Tree:
    """The inverse of `_without_tensors`."""
    if isinstance(value, list):
        return [_with_tensors(part, tensors) for part in value]
    if not isinstance(value, dict):
        return value
    if "$tensor" in value:
        return tensors[value["$tensor"]]
    if "$array" in value:
        return tensors[value["$array"]].numpy()
    items = value["$items"] if "$items" in value else value.items()
    return {key: _with_tensors(part, tensors) for key, part in items}
