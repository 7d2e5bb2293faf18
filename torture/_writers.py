"""Small valid files of every format, written without the code that reads them; tests and attacks share them."""

import gzip
import io
import os
import struct
import warnings
from unittest.mock import patch

import h5py
import numpy as np
from PIL import Image

TABLE = []
for number in range(256):
    for _ in range(8):
        number = (number >> 1) ^ (0x82F63B78 if number & 1 else 0)
    TABLE.append(number)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(data):
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def varint(value):
    value &= (1 << 64) - 1
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def block(field, data):
    return varint(field << 3 | 2) + varint(len(data)) + data


def example(packed=True, **features):
    entries = b""
    for name, values in features.items():
        if isinstance(values[0], bytes):
            feature = block(1, b"".join(block(1, value) for value in values))
        elif isinstance(values[0], float):
            raw = [struct.pack("<f", value) for value in values]
            body = (
                block(1, b"".join(raw)) if packed else b"".join(varint(1 << 3 | 5) + value for value in raw)
            )
            feature = block(2, body)
        else:
            raw = [varint(value) for value in values]
            body = block(1, b"".join(raw)) if packed else b"".join(varint(1 << 3) + value for value in raw)
            feature = block(3, body)
        entries += block(1, block(1, name.encode()) + block(2, feature))
    return block(1, entries)


def frame(number):
    """[84, 84] whose pixels all say the number."""
    return np.full((84, 84), number, np.uint8)


def png(number):
    out = io.BytesIO()
    Image.fromarray(frame(number)).save(out, "PNG")
    return out.getvalue()


def transition(t, episode=-5, discount=1.0, **change):
    """From frame t to t + 1; the stack of step t is the frames t-3..t."""
    fields = {
        "o_t": [png(max(k, 0)) for k in range(t - 3, t + 1)],
        "o_tp1": [png(max(k, 0)) for k in range(t - 2, t + 2)],
        "a_t": [t % 18],
        "a_tp1": [(t + 1) % 18],
        "r_t": [float(t)],
        "d_t": [discount],
        "episode_id": [episode],
        "episode_return": [9.0],
    }
    return example(**{**fields, **change})


def write_shard(path, messages, compress=True):
    data = b"".join(record(message) for message in messages)
    path.write_bytes(gzip.compress(data) if compress else data)
    return path


def ordered(first, length, last_discount, number):
    return example(
        observations=[png(first + t) for t in range(length)],
        actions=[t % 18 for t in range(length)],
        unclipped_rewards=[float(5 * t) for t in range(length)],
        clipped_rewards=[float(t > 0) for t in range(length)],
        discounts=[1.0] * (length - 1) + [last_discount],
        episode_idx=[number],
        checkpoint_idx=[0],
        episode_return=[1.0],
        clipped_episode_return=[1.0],
    )


def stream(lengths):
    """Rows of episodes that all end terminal; observation, action and reward say a running number."""
    rows = {"observation": [], "action": [], "reward": [], "terminal": []}
    number = 1
    for length in lengths:
        for t in range(-3, length):
            rows["observation"].append(np.full((84, 84), number if t >= 0 else 0, np.uint8))
            rows["action"].append(number % 18 if t >= 0 else 0)
            rows["reward"].append(float(number) if t >= 0 else 0.0)
            rows["terminal"].append(int(t == length - 1))
            number += t >= 0
    kinds = {"observation": np.uint8, "action": np.int32, "reward": np.float32, "terminal": np.uint8}
    return {name: np.array(column, kinds[name]) for name, column in rows.items()}


def write_checkpoint(folder, rows, number=0):
    folder.mkdir(exist_ok=True)
    for name, column in rows.items():
        out = io.BytesIO()
        np.save(out, column)
        (folder / f"$store$_{name}_ckpt.{number}.gz").write_bytes(gzip.compress(out.getvalue()))
    (folder / f"add_count_ckpt.{number}.gz").write_bytes(gzip.compress(b""))
    return folder


def steps(lengths, ends):
    """Flat columns in which every number says its row: observation t of episode e is [e, t]."""
    columns = {name: [] for name in ("observations", "next_observations", "terminals", "timeouts")}
    for number, (length, end) in enumerate(zip(lengths, ends, strict=True)):
        for t in range(length):
            last = t == length - 1
            columns["observations"].append([number, t])
            columns["next_observations"].append([number, t + 1])
            columns["terminals"].append(last and end == "terminal")
            columns["timeouts"].append(last and end == "timeout")
    rows = len(columns["terminals"])
    columns = {name: np.array(column) for name, column in columns.items()}
    columns["observations"] = columns["observations"].astype(np.float32)
    columns["next_observations"] = columns["next_observations"].astype(np.float32)
    columns["actions"] = np.linspace(-1, 1, rows, dtype=np.float32)[:, None]
    columns["rewards"] = np.arange(rows, dtype=np.float32)
    return columns


def write_hdf5(path, columns, **attributes):
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            file[name] = column
        file.attrs.update(attributes)
    return path


def write_minari(root, episodes, observation_space, action_space, env=None, **options):
    """The folder of a new local dataset."""
    import minari
    from minari.data_collector import EpisodeBuffer

    with patch.dict(os.environ, MINARI_DATASETS_PATH=str(root / "minari")), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about every field of the metadata left out
        minari.create_dataset_from_buffers(
            "toy/test-v0",
            [EpisodeBuffer(id=number, **episode) for number, episode in enumerate(episodes)],
            env=env,
            observation_space=observation_space,
            action_space=action_space,
            **options,
        )
    return root / "minari" / "toy" / "test-v0"


def minari_episode(number, length, terminal, **infos):
    return {
        "observations": np.array([[number, t] for t in range(length + 1)], np.float32),
        "actions": np.array([t % 3 for t in range(length)]),
        "rewards": [float(t) for t in range(length)],
        "terminations": [False] * (length - 1) + [terminal],
        "truncations": [False] * (length - 1) + [not terminal],
        "infos": infos,
    }
