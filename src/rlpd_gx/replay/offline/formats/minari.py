"""Minari datasets on disk (the folder that holds `data/metadata.json`, or that `data` folder itself)."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlpd_gx import trees
from rlpd_gx.errors import missing_extra
from rlpd_gx.replay.offline import hdf5
from rlpd_gx.replay.offline.episode import ActionRange, Episode, Source, problem
from rlpd_gx.replay.offline.numbers import flags, is_numeric
from rlpd_gx.trees import Tree
from rlpd_gx.types import Array
from rlpd_gx.untrusted import reading

name = "minari"
description = "Minari dataset folder"
# Where `rlpd-gx collect` stores what Minari has no field for.
PROPOSED, MARGIN, UNSAFE = "proposed_action", "margin", "unsafe_event"
# in infos too, but with an entry for the reset's state
SAFE_SET, SAFE_SET_KNOWN = ("safe_set", "safe_set_known")
AGAIN = "download or make it again"
FINGERPRINT, SPEC = "rules_fingerprint", "safe_set_spec"  # in the metadata


def detect(path: Path) -> bool:
    """A folder with Minari's metadata."""
    file = _data_folder(path) / "metadata.json"
    return file.is_file() and b'"total_episodes"' in file.read_bytes()


def read(path: Path) -> Source:
    """All episodes, through Minari's own storage classes."""
    try:
        import minari
        from minari.dataset.minari_storage import is_image_space
    except ImportError:
        raise missing_extra("minari", "minari") from None
    folder = _data_folder(path)
    with reading(folder / "metadata.json", AGAIN):
        metadata = json.loads((folder / "metadata.json").read_bytes())
        _check_metadata(metadata, folder)
        dataset = minari.MinariDataset(folder)
        pictures = bool(metadata.get("jpeg_encoding", True)) and any(
            is_image_space(space) for space in trees.leaves(dataset.observation_space)
        )
        spec = dataset.env_spec
        source = Source(
            episodes=_episodes(dataset, path),
            env_id=spec.id if spec is not None else None,
            total_steps=int(dataset.total_steps),
            actions=ActionRange.of_space(dataset.action_space),
            time_limit_steps=spec.max_episode_steps if spec is not None else None,
            rules_fingerprint=metadata.get(FINGERPRINT),
            safe_set_spec=metadata.get(SPEC),
        )
    if pictures:
        source.notes.append(
            "images are stored as JPEG, Minari's default: they are not the frames that were seen"
        )
    return source


def _check_metadata(metadata: Any, folder: Path) -> None:
    """Check what Minari does not check itself."""
    for field, kind in (("observation_space", str), ("action_space", str), ("total_episodes", int)):
        # Without its spaces, Minari would build the environment, which imports whatever module a file names.
        if not isinstance(metadata.get(field), kind):
            raise problem(folder / "metadata.json", field, None, f"is no {kind.__name__}", AGAIN)
    for field, optional in ((FINGERPRINT, str | None), (SPEC, dict | None)):
        if not isinstance(metadata.get(field), optional):
            raise problem(folder / "metadata.json", field, None, "is of the wrong type", AGAIN)
    stored = sum(entry.is_dir() for entry in folder.iterdir())  # in the format arrow, each has a folder
    if metadata.get("data_format") == "hdf5":
        import h5py

        main = folder / "main_data.hdf5"
        with reading(main, AGAIN), h5py.File(main, "r") as file:
            hdf5.datasets(file, main)
            stored = len(file)
    if stored != metadata["total_episodes"]:
        what = f"is {metadata['total_episodes']}, but {stored} episodes are stored"
        raise problem(folder / "metadata.json", "total_episodes", None, what, AGAIN)


def _data_folder(path: Path) -> Path:
    return path / "data" if (path / "data" / "metadata.json").is_file() else path


def _episodes(dataset: Any, path: Path) -> Iterator[Episode]:
    first_row = 0
    for index in dataset.episode_indices:
        with reading(f"{path}: 'episode_{index}'", AGAIN), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Minari imports parts of its own
            episode = dataset[int(index)]
            observations, actions = _arrays(episode.observations), np.asarray(episode.actions)
            infos = trees.named_leaves(_arrays(episode.infos or {}))
        rewards = np.asarray(episode.rewards)
        steps = len(rewards)
        if steps == 0:
            continue
        ends = [
            flags(path, f"episode_{index}/{name}", np.asarray(getattr(episode, name)), first_row)
            for name in ("terminations", "truncations")
        ]
        for name, column in zip(("terminations", "truncations"), ends, strict=True):
            if len(column) != steps:
                raise problem(
                    path, f"episode_{index}/{name}", None, "differs in length from rewards", "repair it"
                )
            if column[:-1].any():
                row = first_row + int(np.argmax(column))
                raise problem(
                    path, f"episode_{index}/{name}", row, "ends the episode before its end", "repair it"
                )
        if any(isinstance(part, tuple) for part in (observations, actions)):
            raise problem(path, "observations", None, "are tuples", "record them as a Dict space instead")
        yield Episode(
            observations=observations,
            actions=actions,
            rewards=rewards,
            terminated=bool(ends[0][-1]),
            truncated=bool(ends[1][-1] or not ends[0][-1]),
            first_row=first_row,
            proposed_actions=_of_steps(infos.pop(PROPOSED, None)),
            margins=_of_steps(infos.pop(MARGIN, None)),
            unsafe_events=_of_steps(infos.pop(UNSAFE, None)),
            safe_sets=infos.pop(SAFE_SET, None),
            safe_sets_known=infos.pop(SAFE_SET_KNOWN, None),
            extras={
                f"infos/{name}": value[-steps:]  # row t + 1 of an info belongs to step t
                for name, value in infos.items()
                if is_numeric(value) and value.ndim and len(value) in (steps, steps + 1)
            },
        )
        first_row += steps


def _arrays(tree: Tree) -> Tree:
    """Parts of a dict by flat name; a tuple stays one."""
    arrays = trees.map_leaves(np.asarray, tree)
    return trees.named_leaves(arrays) if isinstance(arrays, dict) else arrays


def _of_steps(info: Array | None) -> Array | None:
    """Infos have T + 1 rows, the first from the reset."""
    return None if info is None else info[1:]
