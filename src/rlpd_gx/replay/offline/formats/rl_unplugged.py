"""RL Unplugged Atari: TFRecord shards of `tf.train.Example` with PNG frames, in both published layouts.

`atari`: one record per transition, in shuffled order: o_t and o_tp1 (4 PNGs each, oldest first), a_t, r_t,
d_t, episode_id. `atari_episodes_ordered`: one record per episode: observations (one PNG a step), actions,
unclipped_rewards, clipped_rewards, discounts.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlpd_gx.errors import GxError, missing_extra
from rlpd_gx.replay.offline import tfrecord
from rlpd_gx.replay.offline.episode import ActionRange, Episode, Source, problem
from rlpd_gx.types import Array

DESCRIPTION = "RL Unplugged Atari TFRecord, a shard or a folder of shards"
ATARI_ACTIONS = 18
REPAIR = "the file is not an RL Unplugged Atari shard or was written wrongly"


def recognises(path: Path) -> bool:
    """A file, or a folder whose first file, is a TFRecord."""
    files = _shards(path)
    return bool(files) and tfrecord.looks_like_tfrecord(files[0])


def read(path: Path) -> Source:
    """Shards in the order of their names."""
    try:
        import PIL  # noqa: F401  only to fail early
    except ImportError:
        raise missing_extra("pillow", "data") from None
    notes: list[str] = []
    return Source(
        episodes=_episodes(_shards(path), notes), actions=ActionRange(count=ATARI_ACTIONS), notes=notes
    )


def _shards(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(file for file in path.glob("*") if file.is_file() and not file.name.startswith((".", "$")))


def _episodes(files: list[Path], notes: list[str]) -> Iterator[Episode]:
    piece = _Piece()
    transitions = pieces = terminals = 0
    for file in files:
        for row, message in enumerate(tfrecord.records(file)):
            try:
                record = tfrecord.parse_example(message)
            except (ValueError, KeyError) as error:
                raise GxError(f"{file}: record {row}: not a tf.train.Example ({error}); {REPAIR}") from None
            if "observations" in record:
                yield _ordered_episode(record, file, row)
                continue
            transitions += 1
            terminals += _number(record, "d_t", file, row) == 0
            if not piece.continues(record) and piece.records:
                pieces += 1
                yield piece.episode()
                piece = _Piece()
            piece.add(record, file, row)
        if piece.records:  # a piece does not run on into the next shard
            pieces += 1
            yield piece.episode()
            piece = _Piece()
    if transitions and pieces > transitions / 2:
        notes.append(
            f"{transitions} transitions came in {pieces} pieces: this layout is shuffled, so windows in time "
            "do not exist and each piece stores 4 more frames; atari_episodes_ordered keeps whole episodes"
        )
    if transitions and not terminals:
        notes.append("no record has d_t = 0: terminal states are not marked in these files")


class _Piece:
    """Transitions that follow one another: `o_tp1` of one is `o_t` of the next."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.first_row = 0
        self.file = Path()

    def continues(self, record: dict[str, Any]) -> bool:
        if not self.records:
            return False
        last = self.records[-1]
        return bool(
            last["d_t"][0] != 0
            and last["episode_id"][:1] == record.get("episode_id", [None])[:1]
            and last["o_tp1"] == record.get("o_t")
        )

    def add(self, record: dict[str, Any], file: Path, row: int) -> None:
        for name in ("a_t", "r_t", "d_t", "episode_id"):
            _number(record, name, file, row)
        for name in ("o_t", "o_tp1"):
            if len(record.get(name, ())) != 4:
                raise problem(file, name, row, "does not hold 4 frames", REPAIR)
        if not self.records:
            self.first_row, self.file = row, file
        self.records.append(record)

    def episode(self) -> Episode:
        pngs = [*self.records[0]["o_t"], *(record["o_tp1"][3] for record in self.records)]
        terminated = bool(self.records[-1]["d_t"][0] == 0)
        return Episode(
            observations=_frames(pngs, self.file, "o_t", self.first_row),
            actions=np.array([record["a_t"][0] for record in self.records]),
            rewards=np.array([record["r_t"][0] for record in self.records]),
            terminated=terminated,
            truncated=not terminated,
            first_row=self.first_row,
            file=self.file,
            lead_in=3,
            extras={"episode_id": np.array([record["episode_id"][0] for record in self.records])},
        )


def _ordered_episode(record: dict[str, Any], file: Path, row: int) -> Episode:
    """L frames are L - 1 steps: what was done in the last one leads to nothing that was stored."""
    length = len(record["observations"])
    for name in ("actions", "unclipped_rewards", "clipped_rewards", "discounts"):
        if name not in record:
            raise problem(file, name, row, "is missing", REPAIR)
        if len(record[name]) != length:
            raise problem(file, name, row, f"has {len(record[name])} entries for {length} frames", REPAIR)
    if length < 2:
        raise problem(file, "observations", row, "is an episode without a step", REPAIR)
    terminated = bool(record["discounts"][-1] == 0)
    return Episode(
        observations=_frames(record["observations"], file, "observations", row),
        actions=record["actions"][:-1],
        rewards=record["unclipped_rewards"][:-1],
        terminated=terminated,
        truncated=not terminated,
        first_row=row,
        file=file,
        extras={"clipped_reward": record["clipped_rewards"][:-1]},
    )


def _number(record: dict[str, Any], name: str, file: Path, row: int) -> float:
    if len(record.get(name, ())) != 1:
        found = ", ".join(sorted(record)) or "nothing"
        raise problem(file, name, row, f"is missing (found: {found})", REPAIR)
    return float(record[name][0])


def _frames(pngs: list[bytes], file: Path, name: str, row: int) -> Array:
    """`[n, height, width]` uint8 grey frames."""
    from PIL import Image, UnidentifiedImageError

    frames = []
    for png in pngs:
        try:
            with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
                frames.append(np.asarray(image if image.mode == "L" else image.convert("L")))
        except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
            raise problem(file, name, row, f"holds a broken PNG ({type(error).__name__})", REPAIR) from None
    if len({frame.shape for frame in frames}) != 1:
        raise problem(file, name, row, "holds frames of different sizes", REPAIR)
    return np.stack(frames)
