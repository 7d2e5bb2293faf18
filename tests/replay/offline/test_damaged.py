"""Damaged and hostile files, defect by defect: wrong content is refused, in one sentence, before memory is taken."""

import gzip
import json
import os

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from gymnasium.spaces import Box, Discrete
from torture._damage import huge_png, npy, npz
from torture._writers import (
    masked,
    minari_episode,
    record,
    steps,
    stream,
    transition,
    write_checkpoint,
    write_hdf5,
    write_minari,
    write_shard,
)

from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline import load

pytestmark = pytest.mark.usefixtures("nothing_cached")


def columns(**change):
    return {**steps([3, 2], ["terminal", "timeout"]), **change}


def refused(path, match, **options):
    with pytest.raises(GxError, match=match) as error:
        load(path, **options)
    assert "\n" not in str(error.value)


# --- checksums -----------------------------------------------------------------------------------------------------


def test_no_bit_of_a_gzipped_checkpoint_can_flip_unseen(tmp_path):
    rng = np.random.default_rng(0)
    folder = write_checkpoint(tmp_path / "logs", stream([5, 4]))
    right = load(folder, root=tmp_path / "other").digest()
    for field in ("observation", "action", "reward", "terminal"):
        file = folder / f"$store$_{field}_ckpt.0.gz"
        whole = file.read_bytes()
        # the first ten bytes say when and where it was packed
        for place in rng.choice(np.arange(10, len(whole)), 12, replace=False):
            spoiled = bytearray(whole)
            spoiled[place] ^= 1 << int(rng.integers(8))
            file.write_bytes(spoiled)
            refused(folder, r"ckpt\.0\.gz")
        file.write_bytes(whole)
    assert load(folder, root=tmp_path / "another").digest() == right


def test_data_after_the_rows_a_header_declares(tmp_path):
    folder = write_checkpoint(tmp_path / "logs", stream([5]))
    file = folder / "$store$_reward_ckpt.0.gz"
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()) + b"more"))
    refused(folder, "'reward', row 8: .*more bytes than its header says")


# --- flags, types and values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["terminals", "timeouts", "unsafe_events"])
@pytest.mark.parametrize("value", [np.nan, 0.5, -1.0, 7.0])
def test_only_0_and_1_are_flags(tmp_path, name, value):
    flags = np.array([0, 0, 1, 0, 0], float)
    flags[1] = value
    np.savez(tmp_path / "a.npz", **columns(**{name: flags}))
    refused(tmp_path / "a.npz", f"'{name}', row 1: is {value}, not 0 or 1")


def test_flags_of_other_formats(tmp_path):
    rows = stream([5])
    refused(
        write_checkpoint(tmp_path / "logs", {**rows, "terminal": rows["terminal"] * 7}),
        "'terminal', row 7: is 7",
    )
    refused(write_shard(tmp_path / "shard", [transition(10, discount=0.5)]), "'d_t', row 0: .*not 0 or 1")
    episode = minari_episode(0, 3, True) | {"terminations": [0.0, 0.0, float("nan")]}
    refused(
        write_minari(tmp_path, [episode], Box(-9, 9, (2,), np.float32), Discrete(3)), "is nan, not 0 or 1"
    )


def test_an_end_in_the_middle_of_a_minari_episode(tmp_path):
    episode = minari_episode(0, 3, True) | {"terminations": [True, False, True]}
    folder = write_minari(tmp_path, [episode], Box(-9, 9, (2,), np.float32), Discrete(3))
    refused(folder, "'episode_0/terminations', row 0: ends the episode before its end")


@pytest.mark.parametrize("name", ["rewards", "margins"])
def test_a_number_that_float32_cannot_hold(tmp_path, name):
    np.savez(tmp_path / "a.npz", **columns(**{name: np.array([0, 1e300, 0, 0, 0])}))
    refused(tmp_path / "a.npz", rf"'{name}', row 1: is 1e\+300, more than a float32 can hold")


def test_a_number_that_the_type_of_the_first_episode_cannot_hold(tmp_path):
    episodes = [minari_episode(0, 3, True, n=np.arange(4, dtype=np.int16))]
    episodes.append(minari_episode(1, 2, True, n=np.array([1, 2, 70_000])))
    folder = write_minari(tmp_path, episodes, Box(-9, 9, (2,), np.float32), Discrete(3))
    refused(folder, "'extras/infos/n', row 1: is 70000, which int16 cannot hold")


def test_a_layout_that_cannot_hold_the_data(tmp_path):
    big = columns()["observations"].astype(np.float64)
    big[1, 0] = 1e300
    np.savez(tmp_path / "a.npz", **columns(observations=big, next_observations=big + 1))
    data = load(tmp_path / "a.npz", root=tmp_path / "other")
    layout = load(write_hdf5(tmp_path / "b.hdf5", columns()), root=tmp_path / "other").timeline.layout
    with pytest.raises(GxError, match=r"'observation', row \d: is .*float32 cannot hold"):
        data.in_layout(layout)


@pytest.mark.parametrize("dtype", ["U3", "S3", "M8[s]", "m8[s]", "c16"])
@pytest.mark.parametrize("name", ["rewards", "observations", "actions", "terminals"])
def test_columns_that_are_no_numbers(tmp_path, name, dtype):
    changed = columns(**{name: columns()[name].astype(int).astype(dtype)})
    np.savez(tmp_path / "a.npz", **changed)
    refused(tmp_path / "a.npz", f"'{name}': holds .*, not numbers")


def test_extras_that_are_no_numbers_are_left_out(tmp_path):
    np.savez(tmp_path / "a.npz", **columns(when=np.zeros(5, "M8[s]"), good=np.ones(5)))
    data = load(tmp_path / "a.npz", root=tmp_path / "other")
    assert list(data.timeline.extras) == ["good"]
    assert "when" in data.findings[0]


def test_another_byte_order_is_read(tmp_path):
    np.savez(tmp_path / "a.npz", **columns(rewards=np.arange(5, dtype=">f8")))
    data = load(tmp_path / "a.npz", root=tmp_path / "other")
    assert data.timeline.reward.tolist() == [0, 1, 2, 0, 3, 4, 0]


@pytest.mark.parametrize("ids", [np.array([0, -1, 2, 0, 0]), np.array([0, 2**64 - 1, 0, 0, 0], np.uint64)])
def test_ids_that_no_environment_has(tmp_path, ids):
    np.savez(tmp_path / "a.npz", **columns(actions=ids))
    if ids.dtype == np.uint64:
        assert load(tmp_path / "a.npz", root=tmp_path / "other").timeline.executed_action.min() >= 0
    else:
        refused(tmp_path / "a.npz", "'actions', row 1: is -1, but ids begin at 0")


# --- shapes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"rewards": np.zeros((5, 2))}, r"'rewards': has shape \(2,\) in every row"),
        ({"terminals": np.zeros((5, 2))}, r"'terminals', row 0: has shape \(2,\)"),
        ({"next_observations": np.zeros((5, 3))}, "'next_observations': has shape"),
        ({"proposed_actions": np.zeros((5, 2))}, "'proposed_actions', row 0: has shape"),
        ({"safe_sets": np.zeros(5)}, "'safe_sets', row 0: has shape"),
        ({"rewards": np.array(3.0)}, "'rewards': is one number, not a column"),
        ({"episode": np.array([0, 0, np.nan, 1, 1])}, "'episode', row 2: is empty or not finite"),
        ({"safe_sets": np.full((5, 2), np.nan)}, "'safe_sets', row 0: is NaN"),
    ],
)
def test_shapes_that_do_not_fit(tmp_path, change, match):
    np.savez(tmp_path / "a.npz", **columns(**change))
    refused(tmp_path / "a.npz", match)


@pytest.mark.parametrize(
    ("cells", "match"),
    [
        ([[1.0], None, [1.0], [1.0], [1.0]], "'observations', row 1: is empty"),
        ([[1.0], [None], [1.0], [1.0], [1.0]], "'observations', row 1: is empty"),
        ([[1.0], [1.0, 2.0], [1.0], [1.0], [1.0]], "'observations', row 1: has 2 entries"),
        ([["a"]] * 5, "'observations': holds list<.*string>, not numbers"),
        ([[[1.0]]] * 5, "'observations': holds list<.*, not numbers"),
        ([[]] * 5, "'observations': holds list<.*, not numbers"),
    ],
)
def test_lists_in_parquet(tmp_path, cells, match):
    table = {"observations": cells, "actions": [0.5] * 5, "rewards": [1.0] * 5, "terminals": [0, 0, 1, 0, 1]}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "a.parquet")
    refused(tmp_path / "a.parquet", match)


def test_a_page_of_parquet_that_does_not_fit_its_checksum(tmp_path):
    table = pyarrow.table({name: list(column) for name, column in columns().items()})
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(
        table,
        path,
        write_page_checksum=True,
        compression="none",
        use_dictionary=False,
        column_encoding="PLAIN",
    )
    whole = path.read_bytes()
    at = whole.index(np.arange(5, dtype="<f4").tobytes())
    path.write_bytes(whole[:at] + b"\x00\x00\x80\x3f" + whole[at + 4 :])
    refused(path, "cannot be read")


# --- sizes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("shape", [(10**13,), (10**13, 0), (2**62, 2**62), (3,)])
def test_an_array_that_declares_another_size(tmp_path, packed, shape):
    (tmp_path / "a.npz").write_bytes(npz(columns(), packed, {"rewards": shape}))
    refused(tmp_path / "a.npz", r"a\.npz.*'rewards'")


def test_an_archive_that_unpacks_to_more_than_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("rlpd_gx.untrusted.UNPACKED_FLOOR", 1 << 20)
    (tmp_path / "a.npz").write_bytes(npz(columns(rewards=np.zeros(1 << 20)), packed=True))
    refused(tmp_path / "a.npz", r"declares 8\d+ bytes but stores .*without compression")
    (tmp_path / "log.json.gz").write_bytes(gzip.compress(b"{" + b" " * (1 << 23)))
    refused(tmp_path / "log.json.gz", r"declares .* bytes but stores")


@pytest.mark.parametrize("shape", [(10**12, 84, 84), (53, 10**6, 10**6), (10**12, 0), ()])
def test_a_checkpoint_that_declares_another_size(tmp_path, shape):
    rows = stream([50])
    folder = write_checkpoint(tmp_path / "logs", rows)
    file = folder / "$store$_observation_ckpt.0.gz"
    file.write_bytes(gzip.compress(npy(rows["observation"], shape)))
    refused(folder, "observation_ckpt|'action', row")


def test_an_episode_without_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr("rlpd_gx.replay.offline.formats.dqn_replay.EPISODE_BYTES", 100_000)
    monkeypatch.setattr("rlpd_gx.replay.offline.formats.dqn_replay.CHUNK_ROWS", 10)
    refused(
        write_checkpoint(tmp_path / "logs", stream([50])), "'terminal', row 0: begins an episode of more than"
    )


@pytest.mark.parametrize("compress", [True, False])
def test_a_record_that_declares_another_size(tmp_path, compress):
    length = (2**40).to_bytes(8, "little")
    data = record(transition(10)) + length + masked(length) + transition(11)
    (tmp_path / "shard").write_bytes(gzip.compress(data) if compress else data)
    refused(tmp_path / "shard", "record 1: (declares|the file ends)")


def test_a_number_of_a_million_bytes(tmp_path):
    refused(write_shard(tmp_path / "shard", [b"\xff" * (1 << 20) + b"\x00"]), "more than 10 bytes")


def test_a_picture_that_declares_another_size(tmp_path):
    refused(
        write_shard(tmp_path / "shard", [transition(10, o_t=[huge_png(9_000)] * 4)]), "'o_t', row 0: .*PNG"
    )


@pytest.mark.parametrize("chunks", [None, (1 << 20,)])
def test_an_hdf5_dataset_that_declares_more_than_it_stores(tmp_path, chunks):
    path = write_hdf5(tmp_path / "a.hdf5", columns())
    with h5py.File(path, "a") as file:
        del file["rewards"]
        file.create_dataset("rewards", (10**12,), np.float64, chunks=chunks)
    refused(path, "'rewards': declares 8000000000000 bytes but stores 0")


# --- outside the file ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["link", "virtual", "external"])
@pytest.mark.parametrize("format", ["d4rl", "minari"])
def test_nothing_outside_an_hdf5_file_is_read(tmp_path, kind, format):
    secret = write_hdf5(tmp_path / "secret.hdf5", {"rewards": np.arange(3.0)})
    if format == "d4rl":
        path = inside = write_hdf5(tmp_path / "a.hdf5", steps([3], ["terminal"]))
        name = "rewards"
    else:
        path = write_minari(tmp_path, [minari_episode(0, 3, True)], Box(-9, 9, (2,), np.float32), Discrete(3))
        inside, name = path / "data" / "main_data.hdf5", "episode_0/rewards"
    with h5py.File(inside, "a") as file:
        del file[name]
        if kind == "link":
            file[name] = h5py.ExternalLink(str(secret), "rewards")
        elif kind == "virtual":
            layout = h5py.VirtualLayout((3,), np.float64)
            layout[...] = h5py.VirtualSource(str(secret), "rewards", (3,))
            file.create_virtual_dataset(name, layout)
        else:
            file.create_dataset(name, (3,), np.float64, external=[(str(secret), 0, h5py.h5f.UNLIMITED)])
    refused(path, f"'{name}' is .*; copy the data into the file itself")


def test_a_group_that_contains_itself(tmp_path):
    path = write_hdf5(tmp_path / "a.hdf5", columns())
    with h5py.File(path, "a") as file:
        file["infos/again"] = file["/"]
    assert load(path, root=tmp_path / "other").steps == 5


# --- Minari metadata -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("total_episodes", 10**12, "'total_episodes': is 1000000000000, but 1 episodes are stored"),
        ("total_episodes", "many", "'total_episodes': is no int"),
        ("observation_space", None, "'observation_space': is no str"),
        ("action_space", '{"type": "Discrete"}', "metadata.json: cannot be read"),
        ("data_format", "arrow", "'total_episodes': is 1, but 0 episodes are stored"),
        ("minari_version", "9.9", "cannot be read.*version"),
        ("rules_fingerprint", 7, "'rules_fingerprint'"),
        ("env_spec", "{}", "cannot be read"),
        ("dataset_id", None, "cannot be read"),
    ],
)
def test_minari_metadata(tmp_path, field, value, match):
    folder = write_minari(tmp_path, [minari_episode(0, 3, True)], Box(-9, 9, (2,), np.float32), Discrete(3))
    file = folder / "data" / "metadata.json"
    metadata = {**json.loads(file.read_text()), field: value}
    file.write_text(json.dumps({name: entry for name, entry in metadata.items() if entry is not None}))
    refused(folder, match)


def test_minari_cannot_be_made_to_import_a_module(tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text("raise SystemExit('the trap was sprung')")
    monkeypatch.syspath_prepend(tmp_path)
    folder = write_minari(tmp_path, [minari_episode(0, 3, True)], Box(-9, 9, (2,), np.float32), Discrete(3))
    file = folder / "data" / "metadata.json"
    metadata = json.loads(file.read_text())
    del metadata["observation_space"]
    metadata["env_spec"] = json.dumps({"id": "Trap-v0", "entry_point": "trap:Env", "kwargs": {}})
    file.write_text(json.dumps(metadata))
    refused(folder, "'observation_space'")


# --- action logs ---------------------------------------------------------------------------------------------------

LOG = {
    "env_id": "ALE/Pong-v5",
    "kwargs": {"frameskip": 4, "repeat_action_probability": 0.0, "full_action_space": False},
    "episodes": [
        {
            "seed": 1,
            "ale_actions": [0, 1],
            "rewards": [0.0, 0.0],
            "lives": [0, 0, 0],
            "terminated": False,
            "truncated": True,
        }
    ],
}


@pytest.mark.parametrize(
    ("where", "value", "match"),
    [
        (("kwargs", "frameskip"), 10**9, "'kwargs': has no fixed frameskip from 1 to 64"),
        (("kwargs", "frameskip"), True, "'kwargs': has no fixed frameskip"),
        (("kwargs", "render_mode"), "human", "'kwargs': has 'render_mode'"),
        (("kwargs", "mode"), "x", "'env_id': cannot be made"),
        (("kwargs",), [], "'kwargs': is not a JSON dict"),
        (("env_id",), 3, "'env_id': is not a JSON str"),
        (("episodes",), {}, "'episodes': is not a JSON list"),
        (("episodes", 0), 3, "'seed', row episode 0: is missing"),
        (("episodes", 0, "seed"), -1, "'seed', row episode 0: is not a whole number"),
        (("episodes", 0, "seed"), "1", "'seed', row episode 0: is not a whole number"),
        (
            ("episodes", 0, "ale_actions"),
            [[0], 1],
            "'ale_actions', row episode 0: is not a list of whole numbers",
        ),
        (("episodes", 0, "rewards"), ["0", 0], "'rewards', row episode 0: is not a list of numbers"),
        (("episodes", 0, "rewards"), 3, "'rewards', row episode 0: is not a list of numbers"),
        (("episodes", 0, "lives"), [0, None, 0], "'lives', row episode 0: is not a list of whole numbers"),
        (("episodes", 0, "terminated"), "no", "'terminated', row episode 0: is not true or false"),
    ],
)
def test_types_in_an_action_log(tmp_path, where, value, match):
    log = json.loads(json.dumps(LOG))
    node = log
    for key in where[:-1]:
        node = node[key]
    node[where[-1]] = value
    path = tmp_path / "log.json.gz"
    path.write_bytes(gzip.compress(json.dumps(log).encode()))
    refused(path, match)


@pytest.mark.parametrize("content", [b'{"a":' * 100_000, b"[1]", b'{"a": 1' + b"0" * 5000 + b"}"])
def test_json_that_is_no_log(tmp_path, content):
    (tmp_path / "log.json").write_bytes(content)
    refused(tmp_path / "log.json", "cannot be read|missing", format="action_log")


# --- the converted folder and the cache ----------------------------------------------------------------------------


@pytest.fixture
def converted(tmp_path):
    source = tmp_path / "a.npz"
    np.savez(source, **columns(safe_sets=np.ones((5, 1), np.uint8)))
    return load(source, root=tmp_path / "other").save(tmp_path / "converted")


def test_every_byte_of_a_converted_folder_is_covered(converted):
    right = load(converted).digest()
    for file in sorted(converted.iterdir()):
        whole = file.read_bytes()
        for place in range(0, len(whole), max(1, len(whole) // 40)):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
            try:
                assert load(converted).digest() == right  # white space of the JSON
                assert file.name == "meta.json"
            except GxError:
                pass
            file.write_bytes(whole)
    assert load(converted).digest() == right


def test_nan_in_a_folder_with_a_right_checksum(tmp_path):
    rewards = np.array([0, np.nan, 0, 0, 0], np.float32)
    np.savez(tmp_path / "a.npz", **columns(rewards=rewards))
    folder = load(tmp_path / "a.npz", strict=False, root=tmp_path / "other").save(tmp_path / "converted")
    refused(folder, "'reward', row 1: is NaN or infinite")
    assert load(folder, strict=False).steps == 5  # an audit looks at it


def test_the_same_size_and_time_is_not_the_same_content(tmp_path):
    path, root = tmp_path / "a.npz", tmp_path / "other"
    np.savez(path, **columns())
    status = path.stat()
    assert load(path, root=root).timeline.reward[0] == 0
    with path.open("r+b") as file:  # in place, so that not even the inode differs
        np.savez(file, **columns(rewards=np.arange(5, dtype=np.float32) + 1))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert load(path, root=root).timeline.reward[0] == 1
