"""Every dataset format: a small valid file, and damage that only someone who knows the format can do."""

import functools
import gzip
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from torture import _writers
from torture._damage import HUGE, bomb, damaged_bytes, damaged_columns, damaged_json, huge_png, npy, npz

GAME = {"frameskip": 4, "repeat_action_probability": 0.0, "full_action_space": False}
MAPPING = {"observations": ["x", "y"], "actions": ["u"], "rewards": "r", "terminals": "end", "episode": "run"}


def flat_columns() -> dict[str, np.ndarray]:
    columns = _writers.steps([5, 4], ["terminal", "timeout"])
    codes = np.arange(27, dtype=np.float32).reshape(9, 3)
    return {**columns, "safe_sets": codes, "next_safe_sets": codes + 1, "iteration": np.arange(9)}


def log_columns() -> dict[str, np.ndarray]:
    columns = _writers.steps([5, 4], ["terminal", "timeout"])
    return {
        "x": columns["observations"][:, 0],
        "y": columns["observations"][:, 1],
        "u": columns["actions"][:, 0],
        "r": columns["rewards"],
        "end": columns["terminals"].astype(int),
        "run": np.array([0] * 5 + [1] * 4),
        "time": np.arange(9.0),
    }


def mdp_arrays(sparse: bool) -> dict[str, np.ndarray]:
    arrays = {
        "rewards": np.arange(6.0).reshape(3, 2),
        "discount": np.array(0.9),
        "allowed": np.array([[True, True], [True, False], [True, True]]),
        "fallback": np.array([0, 0, 1]),
        "inevitable": np.zeros(3, bool),
    }
    if not sparse:
        return {**arrays, "transitions": np.full((3, 2, 3), 1 / 3)}
    parts = {"data": np.full(18, 1 / 3), "indices": np.tile(np.arange(3), 6), "indptr": np.arange(0, 19, 3)}
    return arrays | {f"transitions_{name}": part for name, part in parts.items()}


Damage = Callable[[Path, np.random.Generator], str]


@dataclass
class Format:
    """A small valid file, and damage that only someone who knows the format can do."""

    write: Callable[[Path], Path]
    """(folder) -> the path to load."""
    knowing: Damage
    checksum: str = ""
    """What covers the content, so that nothing wrong may be accepted after blind damage; empty if nothing does."""
    options: dict[str, Any] = field(default_factory=dict)
    name: str | None = None
    """Given to `load` in half of the trials."""
    weight: int = 2


def write_bytes(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def write_csv(path: Path, columns: dict[str, np.ndarray]) -> Path:
    width = max(len(column) for column in columns.values())
    lines = [",".join(columns)]
    for row in range(width):
        lines.append(",".join(str(c[row]) if row < len(c) else "" for c in columns.values()))
    path.write_text("\n".join(lines) + "\n")
    return path


def write_parquet(path: Path, columns: dict[str, np.ndarray], **options: Any) -> Path:
    import pyarrow
    from pyarrow import parquet

    width = min(len(column) for column in columns.values())
    table = pyarrow.table({name: pyarrow.array(list(column[:width])) for name, column in columns.items()})
    parquet.write_table(table, path, **options)
    return path


def write_game(path: Path, log: object) -> Path:
    return write_bytes(path, gzip.compress(json.dumps(log).encode(), mtime=0))


def game_log() -> dict[str, Any]:
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    env = gymnasium.make("ALE/Pong-v5", obs_type="ram", **GAME)
    ids = [action.value for action in env.unwrapped._action_set]
    episodes = []
    for seed in (1, 2):
        _, info = env.reset(seed=seed)
        record: dict[str, Any] = {"seed": seed, "ale_actions": [], "rewards": [], "lives": [info["lives"]]}
        for action in range(6):
            _, reward, _, _, info = env.step(action)
            record["ale_actions"].append(ids[action])
            record["rewards"].append(float(reward))
            record["lives"].append(info["lives"])
        episodes.append({**record, "terminated": False, "truncated": True})
    return {"env_id": "ALE/Pong-v5", "kwargs": GAME, "episodes": episodes}


def minari_columns() -> dict[str, np.ndarray]:
    from rlpd_gx.safe_sets import Box

    codes = np.stack([Box(np.zeros(1), np.full(1, t)).encode() for t in range(6)])
    episode = _writers.minari_episode(0, 5, True, lives=np.arange(6), safe_set=codes)
    infos = {f"infos/{name}": column for name, column in episode.pop("infos").items()}
    return {name: np.asarray(column) for name, column in episode.items()} | infos


def write_minari(folder: Path) -> Path:
    from gymnasium.spaces import Box, Discrete

    episodes = [_writers.minari_episode(0, 5, True), _writers.minari_episode(1, 4, False)]
    return _writers.write_minari(folder, episodes, Box(-9, 9, (2,), np.float32), Discrete(3))


def write_converted(folder: Path) -> Path:
    from rlpd_gx.replay.offline import load

    source = write_bytes(folder / "source.npz", npz(flat_columns()))
    load(source, root=folder / "cache").save(folder / "converted")
    shutil.rmtree(folder / "cache")
    source.unlink()
    return folder / "converted"


def spoil_hdf5(path: Path, rng: np.random.Generator, columns: dict[str, np.ndarray], group: str = "") -> str:
    """Columns in an HDF5 file, with a wrong one, or one that lies elsewhere or nowhere."""
    import h5py

    columns, what = damaged_columns(columns, rng)
    columns = {name or "none": column for name, column in columns.items() if column.dtype.kind not in "OMm"}
    outside = path.with_name("outside.hdf5")
    with h5py.File(path, "a") as file:
        if group in file and group:
            del file[group]
        target = file.require_group(group) if group else file
        for name in list(target):
            if not group:
                del target[name]
        for name, column in columns.items():
            target[name] = column.astype("S") if column.dtype.kind == "U" else column
        name = str(rng.choice(list(columns)))
        kind = str(
            rng.choice(["", "external link", "virtual", "external", "huge", "huge chunks", "cycle", "soft"])
        )
        if not kind:
            return what
        del target[name]
        column = columns[name]
        if kind in ("external link", "virtual", "external"):
            with h5py.File(outside, "w") as other:
                other["secret"] = np.zeros(column.shape, np.float32)
            shape, dtype = column.shape or (1,), np.float32
            if kind == "external link":
                target[name] = h5py.ExternalLink(str(outside), "secret")
            elif kind == "virtual":
                layout = h5py.VirtualLayout(shape, dtype)
                layout[...] = h5py.VirtualSource(str(outside), "secret", shape)
                target.create_virtual_dataset(name, layout)
            else:
                target.create_dataset(name, shape, dtype, external=[(str(outside), 0, h5py.h5f.UNLIMITED)])
        elif kind == "cycle":
            target["again"] = target
        elif kind == "soft":
            target[name] = h5py.SoftLink(f"/{group}/{name}")
        else:
            chunks = (1 << 20,) if kind == "huge chunks" else None
            target.create_dataset(name, (10 ** int(rng.integers(9, 13)),), np.float64, chunks=chunks)
    return f"{name!r}: {kind}"


def spoil_arrays(columns: dict[str, np.ndarray]) -> Damage:
    def damage(path: Path, rng: np.random.Generator) -> str:
        if rng.random() < 0.25:
            name = str(rng.choice(list(columns)))
            shape = (10 ** int(rng.integers(9, 14)), *columns[name].shape[1:])
            shapes = {name: shape if rng.random() < 0.7 else (*shape, 0)}
            path.write_bytes(npz(columns, bool(rng.integers(2)), shapes))
            return f"{name!r} declares {shapes[name]}"
        if rng.random() < 0.1:
            path.write_bytes(bomb("npz"))
            return "a bomb"
        spoiled, what = damaged_columns(columns, rng)
        np.savez(path, **spoiled)
        return what

    return damage


def spoil_dqn(path: Path, rng: np.random.Generator) -> str:
    rows = _writers.stream([3, 4])
    name = str(rng.choice(list(rows)))
    file = path / f"$store$_{name}_ckpt.0.gz"
    if rng.random() < 0.4:
        shape = (10 ** int(rng.integers(9, 14)), *rows[name].shape[1:])
        shape = shape[::-1] if rng.random() < 0.3 else (*shape, 0) if rng.random() < 0.3 else shape
        filler = np.zeros(1 << 22, np.uint8) if rng.random() < 0.2 else rows[name]
        file.write_bytes(gzip.compress(npy(filler, shape)))
        return f"{name!r} declares {shape}"
    spoiled, what = damaged_columns({name: rows[name]}, rng)
    if not spoiled:
        file.unlink()
        return what
    out = io.BytesIO()
    np.save(out, next(iter(spoiled.values())))
    file.write_bytes(gzip.compress(out.getvalue()))
    return what


def tf_messages() -> list[bytes]:
    return [
        _writers.transition(10),
        _writers.transition(11, discount=0.0),
        _writers.transition(30, episode=3),
    ]


@functools.cache
def endless_number() -> bytes:
    """A record that is one number of a million bytes; its checksum takes a while."""
    return _writers.record(b"\xff" * (1 << 20) + b"\x00")


def spoil_tfrecord(path: Path, rng: np.random.Generator) -> str:
    """Messages that are wrong under a right checksum, and lengths that are not those of their data."""
    kind = str(rng.choice(["message", "varint", "length", "png", "field", "bomb"]))
    good, message = _writers.transition(10), _writers.transition(11)
    if kind == "message":
        message, what = damaged_bytes(message, rng)
        kind = f"message {what}"
    elif kind == "png":
        frame = huge_png(int(rng.choice([2000, 10_000, 20_000, 2**31 - 1])))
        message = _writers.transition(11, o_t=[frame] * 4)
    elif kind == "field":
        name = str(rng.choice(["o_t", "o_tp1", "a_t", "r_t", "d_t", "episode_id"]))
        odd: list[Any] = [[b"x"], [1], [0.5], [float("nan")], [1, 2], [2**63], [b"x"] * 4, [7.0], [-1.0]]
        values = odd[rng.integers(len(odd))]
        message = _writers.transition(11, **{name: values})
        kind = f"{name} is {values!r}"
    data = _writers.record(good) + (endless_number() if kind == "varint" else _writers.record(message))
    if kind == "length":
        length = HUGE[rng.integers(len(HUGE))].to_bytes(8, "little")
        data = _writers.record(good) + length + _writers.masked(length) + message
    if kind == "bomb":
        path.write_bytes(gzip.compress(_writers.record(good)) + bomb("gzip"))
        return kind
    path.write_bytes(gzip.compress(data, 1) if rng.random() < 0.5 else data)
    return kind


def spoil_log(path: Path, rng: np.random.Generator) -> str:
    log = json.loads(gzip.decompress(path.read_bytes()))
    choice = rng.random()
    if choice < 0.1:
        log["kwargs"]["frameskip"] = int(rng.choice([10**9, 0, -1, 65]))
        what = f"frameskip {log['kwargs']['frameskip']}"
    elif choice < 0.15:
        path.write_bytes(gzip.compress(b'{"env_id": "') + bomb("gzip"))
        return "a bomb"
    elif choice < 0.2:
        path.write_bytes(gzip.compress(b'{"a":' * 100_000))
        return "nested deeply"
    else:
        log, what = damaged_json(log, rng)
    write_game(path, log)
    return what


def spoil_minari(path: Path, rng: np.random.Generator) -> str:
    file = path / "data" / "metadata.json"
    if rng.random() < 0.6:
        return spoil_hdf5(path / "data" / "main_data.hdf5", rng, minari_columns(), "episode_1")
    metadata = json.loads(file.read_bytes())
    for name in ("observation_space", "action_space"):
        if rng.random() < 0.3:
            space, what = damaged_json(json.loads(metadata[name]), rng)
            file.write_text(json.dumps({**metadata, name: json.dumps(space)}))
            return f"{name}{what}"
    metadata, what = damaged_json({**metadata, "env_spec": "{}", "safe_set_spec": {"kind": "box"}}, rng)
    file.write_text(json.dumps(metadata))
    return what


def spoil_table(write: Callable[..., Path]) -> Damage:
    def damage(path: Path, rng: np.random.Generator) -> str:
        columns, what = damaged_columns(log_columns(), rng)
        columns = {name: np.atleast_1d(column) for name, column in columns.items() if column.dtype != "V4"}
        write(path, columns or {"x": np.zeros(1)})
        return what

    return damage


def spoil_converted(path: Path, rng: np.random.Generator) -> str:
    file = path / "meta.json"
    if rng.random() < 0.2:
        victim = sorted(path.iterdir())[rng.integers(len(list(path.iterdir())))]
        victim.unlink()
        return f"{victim.name} removed"
    meta, what = damaged_json(json.loads(file.read_bytes()), rng)
    file.write_text(json.dumps(meta))
    return what


def hdf5_with_checksums(folder: Path) -> Path:
    import h5py

    with h5py.File(folder / "data.hdf5", "w", libver="latest") as file:
        for name, column in flat_columns().items():
            file.create_dataset(name, data=column, chunks=column.shape, fletcher32=True)
    return folder / "data.hdf5"


FORMATS: dict[str, Format] = {
    "minari": Format(write_minari, spoil_minari, name="minari"),
    "hdf5": Format(
        lambda folder: _writers.write_hdf5(folder / "data.hdf5", flat_columns()),
        lambda path, rng: spoil_hdf5(path, rng, flat_columns()),
        name="d4rl",
        weight=4,
    ),
    "hdf5 with fletcher32": Format(
        hdf5_with_checksums,
        lambda path, rng: spoil_hdf5(path, rng, flat_columns()),
        "fletcher32",
        name="d4rl",
    ),
    "npz": Format(
        lambda folder: write_bytes(folder / "data.npz", npz(flat_columns())),
        spoil_arrays(flat_columns()),
        "zip CRC-32",
        name="npz",
    ),
    "npz packed": Format(
        lambda folder: write_bytes(folder / "data.npz", npz(flat_columns(), packed=True)),
        spoil_arrays(flat_columns()),
        "zip CRC-32",
        name="npz",
    ),
    "csv": Format(
        lambda folder: write_csv(folder / "log.csv", log_columns()),
        spoil_table(write_csv),
        options={"mapping": MAPPING},
        name="table",
    ),
    "parquet": Format(
        lambda folder: write_parquet(folder / "log.parquet", log_columns(), write_page_checksum=True),
        spoil_table(write_parquet),
        options={"mapping": MAPPING},
        name="table",
    ),
    "tfrecord": Format(
        lambda folder: _writers.write_shard(folder / "shard", tf_messages(), compress=False),
        spoil_tfrecord,
        "CRC32C of each record",
        name="rl_unplugged",
        weight=1,
    ),
    "tfrecord gzip": Format(
        lambda folder: _writers.write_shard(
            folder / "shard", [_writers.ordered(0, 4, 0.0, 0), _writers.ordered(9, 3, 1.0, 1)]
        ),
        spoil_tfrecord,
        "CRC32C of each record, gzip CRC-32",
        name="rl_unplugged",
        weight=1,
    ),
    "dqn_replay": Format(
        lambda folder: _writers.write_checkpoint(folder / "logs", _writers.stream([3, 4])),
        spoil_dqn,
        "gzip CRC-32",
        name="dqn_replay",
    ),
    "action log": Format(
        lambda folder: write_game(folder / "log.json.gz", game_log()),
        spoil_log,
        "gzip CRC-32",
        name="action_log",
        weight=1,
    ),
    "converted": Format(write_converted, spoil_converted, "SHA-256"),
    "mdp": Format(
        lambda folder: write_bytes(folder / "mdp.npz", npz(mdp_arrays(sparse=False))),
        spoil_arrays(mdp_arrays(sparse=False)),
        "zip CRC-32",
    ),
    "mdp sparse": Format(
        lambda folder: write_bytes(folder / "mdp.npz", npz(mdp_arrays(sparse=True))),
        spoil_arrays(mdp_arrays(sparse=True)),
        "zip CRC-32",
    ),
}
