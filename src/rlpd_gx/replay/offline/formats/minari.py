"""Minari datasets on disk (the folder that holds `data/metadata.json`, or that `data` folder itself)."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlpd_gx.errors import GxError, missing_extra
from rlpd_gx.replay.offline.episode import ActionRange, Episode, Source, problem
from rlpd_gx.types import Array

DESCRIPTION = "Minari dataset folder"
# Where `rlpd-gx collect` keeps what Minari has no field for.
PROPOSED, MARGIN, UNSAFE = "proposed_action", "margin", "unsafe_event"
SAFE_SET, SAFE_SET_KNOWN = "safe_set", "safe_set_known"  # in infos, too, but of the reset's state as well
FINGERPRINT, SPEC = "rules_fingerprint", "safe_set_spec"  # in the metadata


def recognises(path: Path) -> bool:
    """A folder with Minari's metadata."""
    file = _data_folder(path) / "metadata.json"
    return file.is_file() and '"total_episodes"' in file.read_text()


def read(path: Path) -> Source:
    """All episodes, through Minari's own storage classes."""
    try:
        import minari
    except ImportError:
        raise missing_extra("minari", "minari") from None
    folder = _data_folder(path)
    metadata = json.loads((folder / "metadata.json").read_text())
    try:
        dataset = minari.MinariDataset(folder)
    except (ValueError, AssertionError, KeyError, OSError) as error:
        raise GxError(
            f"{path}: Minari cannot open this dataset ({error}); download or make it again"
        ) from None
    notes = []
    if metadata.get("jpeg_encoding", True) and _has_images(dataset.observation_space):
        notes.append("images are stored as JPEG, Minari's default: they are not the frames that were seen")
    spec = dataset.env_spec
    return Source(
        episodes=_episodes(dataset, path),
        env_id=spec.id if spec is not None else None,
        total_steps=int(dataset.total_steps),
        actions=ActionRange.of_space(dataset.action_space),
        time_limit_steps=spec.max_episode_steps if spec is not None else None,
        rules_fingerprint=metadata.get(FINGERPRINT),
        safe_set_spec=metadata.get(SPEC),
        notes=notes,
    )


def _data_folder(path: Path) -> Path:
    return path / "data" if (path / "data" / "metadata.json").is_file() else path


def _has_images(space: Any) -> bool:
    spaces = getattr(space, "spaces", None)
    if isinstance(spaces, dict):
        return any(_has_images(part) for part in spaces.values())
    from minari.dataset.minari_storage import is_image_space

    return bool(is_image_space(space))


def _episodes(dataset: Any, path: Path) -> Iterator[Episode]:
    first_row = 0
    for index in dataset.episode_indices:
        try:
            with warnings.catch_warnings():  # Minari imports parts of its own that are deprecated
                warnings.simplefilter("ignore", DeprecationWarning)
                episode = dataset[int(index)]
        except (OSError, KeyError, ValueError, IndexError) as error:
            raise problem(
                path, f"episode_{index}", None, f"cannot be read ({error})", "download or make it again"
            ) from None
        steps = len(episode.rewards)
        if steps == 0:
            continue
        infos = _flatten(episode.infos or {})
        if len(episode.terminations) != steps or len(episode.truncations) != steps:
            raise problem(
                path, f"episode_{index}/terminations", None, "differs in length from rewards", "repair it"
            )
        yield Episode(
            observations=_observations(episode.observations, path),
            actions=np.asarray(episode.actions),
            rewards=np.asarray(episode.rewards),
            terminated=bool(episode.terminations[-1]),
            truncated=bool(episode.truncations[-1]) or not episode.terminations[-1],
            first_row=first_row,
            proposed_actions=_of_steps(infos.pop(PROPOSED, None)),
            margins=_of_steps(infos.pop(MARGIN, None)),
            unsafe_events=_of_steps(infos.pop(UNSAFE, None)),
            safe_sets=infos.pop(SAFE_SET, None),
            safe_sets_known=infos.pop(SAFE_SET_KNOWN, None),
            extras={
                f"infos/{name}": value[-steps:]  # row t + 1 of an info belongs to step t
                for name, value in infos.items()
                if value.dtype.kind in "biuf" and len(value) in (steps, steps + 1)
            },
        )
        first_row += steps


def _observations(value: Any, path: Path) -> Array | dict[str, Array]:
    if isinstance(value, dict):
        return _flatten(value)
    if isinstance(value, tuple):
        raise problem(path, "observations", None, "are tuples", "record them as a Dict space instead")
    return np.asarray(value)


def _flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Array]:
    leaves: dict[str, Array] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            leaves |= _flatten(value, f"{prefix}{name}/")
        else:
            leaves[f"{prefix}{name}"] = np.asarray(value)
    return leaves


def _of_steps(info: Array | None) -> Array | None:
    """Infos have T + 1 rows, the first from the reset."""
    return None if info is None else info[1:]
