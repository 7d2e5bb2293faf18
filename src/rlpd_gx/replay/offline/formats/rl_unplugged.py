"""RL Unplugged Atari: TFRecord shards of `tf.train.Example` with PNG frames, in both published layouts.

`atari`: one record per transition, in shuffled order: o_t and o_tp1 (4 PNGs each, oldest first), a_t, r_t,
d_t, episode_id. `atari_episodes_ordered`: one record per episode: observations (one PNG per step), actions,
unclipped_rewards, clipped_rewards, discounts.
"""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rlpd_gx.errors import missing_extra
from rlpd_gx.replay.offline import tfrecord
from rlpd_gx.replay.offline.episode import ActionRange, Episode, Source, problem
from rlpd_gx.trees import Json
from rlpd_gx.types import Array
from rlpd_gx.untrusted import reading

name = "rl_unplugged"
description = "RL Unplugged Atari TFRecord, a shard or a folder of shards"
ATARI_ACTIONS = 18
LARGEST_FRAME = 1 << 20  # pixels; the published ones are 84 x 84
REPAIR = "the file is not an RL Unplugged Atari shard or was written wrongly"


def detect(path: Path) -> bool:
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
            with reading(f"{file}: record {row}: as a tf.train.Example", REPAIR):
                record = tfrecord.parse_example(message)
            if "observations" in record:
                yield _ordered_episode(record, file, row)
                continue
            transitions += 1
            terminals += _terminal(_numbers(record, "d_t", 1, file, row), "d_t", file, row)
            if not piece.continues(record) and piece.records:
                pieces += 1
                yield piece.episode()
                piece = _Piece()
            piece.add(record, file, row)
        if piece.records:  # a piece does not continue in the next shard
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
        self.records: list[Json] = []
        self.first_row = 0
        self.file = Path()

    def continues(self, record: Json) -> bool:
        if not self.records:
            return False
        last = self.records[-1]
        return bool(
            last["d_t"][0] != 0
            and np.array_equal(last["episode_id"], record.get("episode_id", ()))
            and list(last["o_tp1"]) == list(record.get("o_t", ()))
        )

    def add(self, record: Json, file: Path, row: int) -> None:
        for name in ("a_t", "r_t", "d_t", "episode_id"):
            _numbers(record, name, 1, file, row)
        for name in ("o_t", "o_tp1"):
            _pngs(record, name, 4, file, row)
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


def _ordered_episode(record: Json, file: Path, row: int) -> Episode:
    """L frames are L - 1 steps: the observation after the last action was not stored."""
    length = len(record["observations"])
    _pngs(record, "observations", length, file, row)
    for name in ("actions", "unclipped_rewards", "clipped_rewards", "discounts"):
        _numbers(record, name, length, file, row)
    if length < 2:
        raise problem(file, "observations", row, "is an episode without a step", REPAIR)
    terminated = _terminal(record["discounts"], "discounts", file, row)
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


def _numbers(record: Json, name: str, count: int, file: Path, row: int) -> Array:
    values = record.get(name, ())
    if len(values) != count or not isinstance(values, np.ndarray):
        found = ", ".join(sorted(record)) or "nothing"
        what = (
            f"holds {len(values)} entries, not {count} numbers"
            if len(values)
            else f"is missing (found: {found})"
        )
        raise problem(file, name, row, what, REPAIR)
    return values


def _pngs(record: Json, name: str, count: int, file: Path, row: int) -> None:
    values = record.get(name, ())
    if len(values) != count or not isinstance(values, list):
        raise problem(file, name, row, f"does not hold {count} frames", REPAIR)


def _terminal(discounts: Array, name: str, file: Path, row: int) -> bool:
    """Whether the last discount, which is 0 or 1 like all of them, is 0."""
    if not np.isin(discounts, (0, 1)).all():
        raise problem(file, name, row, "holds a discount that is not 0 or 1", REPAIR)
    return bool(discounts[-1] == 0)


def _frames(pngs: list[bytes], file: Path, name: str, row: int) -> Array:
    """`[n, height, width]` uint8 grey frames."""
    from PIL import Image

    frames = []
    for png in pngs:
        try:
            with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
                if image.width * image.height > LARGEST_FRAME:
                    raise ValueError(f"{image.width} x {image.height} pixels")
                frames.append(np.asarray(image if image.mode == "L" else image.convert("L")))
        except Exception as error:  # damaged bytes raise anything
            raise problem(file, name, row, f"holds a broken PNG ({type(error).__name__})", REPAIR) from None
    if len({frame.shape for frame in frames}) != 1:
        raise problem(file, name, row, "holds frames of different sizes", REPAIR)
    return np.stack(frames)
