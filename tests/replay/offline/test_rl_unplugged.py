"""RL Unplugged Atari TFRecord, written byte by byte: own CRC32C, own protobuf, PNG by Pillow."""

import gzip

import numpy as np
import pytest
from torture._writers import crc32c, example, ordered, png, record, transition, write_shard

from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline import load, tfrecord


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
    data = load(write_shard(tmp_path / "run_1-00000-of-00100", messages, compress))
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
    data = load(write_shard(tmp_path / "shard", messages))
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
    folder = tmp_path / "Pong"
    folder.mkdir()
    write_shard(folder / "run_1-00000-of-00002", [ordered(0, 4, 0.0, 0)])
    write_shard(folder / "run_1-00001-of-00002", [ordered(50, 3, 1.0, 1)])
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
        load(write_shard(tmp_path / "shard", [good, bad]))
