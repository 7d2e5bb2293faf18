"""RL Unplugged Atari TFRecord, written here byte by byte: own CRC32C, own protobuf, PNG by Pillow."""

import gzip
import io
import struct

import numpy as np
import pytest
from PIL import Image

from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline import load, tfrecord

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


def write(path, messages, compress=True):
    data = b"".join(record(message) for message in messages)
    path.write_bytes(gzip.compress(data) if compress else data)
    return path


def test_the_checksum_of_the_test_itself():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C


@pytest.mark.parametrize("packed", [True, False])
def test_examples_in_both_encodings(packed):
    message = example(packed, a=[3, -1, 1 << 40], f=[0.5, -2.0], s=[b"x", b""])
    parsed = tfrecord.parse_example(message)
    assert parsed["a"].tolist() == [3, -1, 1 << 40]
    assert parsed["f"].tolist() == [0.5, -2.0]
    assert parsed["s"] == [b"x", b""]


@pytest.mark.parametrize("compress", [True, False])
def test_transitions_in_order_share_frames(tmp_path, compress):
    messages = [transition(10), transition(11), transition(12, discount=0.0), transition(40, episode=6)]
    data = load(write(tmp_path / "run_1-00000-of-00100", messages, compress))
    line = data.timeline
    assert data.format == "rl_unplugged"
    assert line.observation[:, 0, 0].tolist() == [7, 8, 9, 10, 11, 12, 13, 37, 38, 39, 40, 41]
    assert line.observation.shape[1:] == (84, 84)
    assert np.flatnonzero(line.is_step).tolist() == [3, 4, 5, 10]
    assert line.episode_step.tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4]
    assert line.reward[line.is_step].tolist() == [10, 11, 12, 40]
    assert line.executed_action[line.is_step].tolist() == [10, 11, 12, 4]
    assert np.flatnonzero(line.terminated).tolist() == [5]
    assert np.flatnonzero(line.truncated).tolist() == [10]


def test_shuffled_transitions_stay_transitions(tmp_path):
    messages = [transition(t) for t in (30, 10, 20)]
    data = load(write(tmp_path / "shard", messages))
    line = data.timeline
    for row in np.flatnonzero(line.is_step):
        t = line.reward[row]
        assert line.observation[row - 3 : row + 2, 0, 0].tolist() == [t - 3, t - 2, t - 1, t, t + 1]
        assert line.episode_step[row] == 3
        assert line.executed_action[row - 1] == -1  # nobody knows what was done before
    assert "shuffled" in data.findings[0]
    assert "d_t = 0" in data.findings[1]
    few = data.where("reward >= 20")  # the frames of a stack stay with their step
    assert few.timeline.observation[:, 0, 0].tolist() == [27, 28, 29, 30, 31, 17, 18, 19, 20, 21]
    assert few.timeline.episode_step.tolist() == [0, 1, 2, 3, 4] * 2


def test_episodes_ordered(tmp_path):
    def episode(first, length, last_discount, number):
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

    folder = tmp_path / "Pong"
    folder.mkdir()
    write(folder / "run_1-00000-of-00002", [episode(0, 4, 0.0, 0)])
    write(folder / "run_1-00001-of-00002", [episode(50, 3, 1.0, 1)])
    line = load(folder).timeline
    line.check_episodes()
    assert line.observation[:, 0, 0].tolist() == [0, 1, 2, 3, 50, 51, 52]
    assert line.reward.tolist() == [0, 5, 10, 0, 0, 5, 0]
    assert np.flatnonzero(line.terminated).tolist() == [2]
    assert np.flatnonzero(line.truncated).tolist() == [5]
    assert line.extras["clipped_reward"].tolist() == [0, 1, 1, 0, 0, 1, 0]


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.usefixtures("nothing_cached")
def test_damage_names_the_record(tmp_path):
    first, second = record(transition(10)), record(transition(11))
    path = tmp_path / "shard"
    for spoiled, sentence in (
        (first + flipped(second, 200), "record 1: the checksum"),
        (first + flipped(second, 3), "record 1: the checksum"),
        (first + flipped(second, len(second) - 1), "record 1: the checksum"),
        (first + second[:100], "record 1: the file ends"),
        (first + second[:5], "record 1: the file ends"),
    ):
        path.write_bytes(spoiled)
        with pytest.raises(GxError, match=sentence):
            load(path)
    path.write_bytes(gzip.compress(first + second)[:-100])
    with pytest.raises(GxError, match=r"shard: record \d: the gzip stream is cut short"):
        load(path)


@pytest.mark.usefixtures("nothing_cached")
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"r_t": []}, "'r_t', row 1: is missing"),
        ({"r_t": [float("nan")]}, "'rewards', row 1: is NaN"),
        ({"a_t": [18]}, "'actions', row 1: is 18"),
        ({"o_t": [png(1)]}, "'o_t', row 1: does not hold 4"),
        ({"o_tp1": [b"no picture"] * 4}, "row 1: holds a broken PNG"),
    ],
)
def test_bad_records_name_field_and_row(tmp_path, change, sentence):
    change = {name: value for name, value in change.items() if value}
    good, fields = transition(10), {"episode": 3, **change}
    bad = (
        transition(11, **fields)
        if change
        else example(o_t=[png(1)] * 4, o_tp1=[png(1)] * 4, a_t=[1], d_t=[1.0])
    )
    with pytest.raises(GxError, match=sentence):
        load(write(tmp_path / "shard", [good, bad]))
