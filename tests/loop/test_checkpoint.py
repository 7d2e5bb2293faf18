import json
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_process import STEPS_BETWEEN, Run
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rlpd_gx.errors import GxError
from rlpd_gx.loop.checkpoint import Checkpoints


def same(a, b) -> bool:
    """Equal in value and kind, bit for bit; tuples have become lists."""
    if isinstance(a, tuple):
        a = list(a)
    if isinstance(a, torch.Tensor):
        same_kind = isinstance(b, torch.Tensor) and (a.dtype, a.shape) == (b.dtype, b.shape)
        return same_kind and a.contiguous().view(-1).numpy().tobytes() == b.view(-1).numpy().tobytes()
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or a != a


DTYPES = [np.bool_, np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int32, np.int64, np.float16]
ARRAYS = st.sampled_from([*DTYPES, np.float32, np.float64]).flatmap(
    lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
    ARRAYS,
    ARRAYS.map(torch.tensor),
)
KEYS = st.one_of(st.text("ab/$", max_size=3), st.integers(0, 3))
STATES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(KEYS, inner, max_size=4), st.lists(inner, max_size=3), st.tuples(inner, inner)
    ),
    max_leaves=8,
)


@settings(max_examples=60)
@given(state=st.dictionaries(KEYS, STATES, max_size=3))
def test_any_state_comes_back_bit_for_bit(tmp_path_factory, state):
    checkpoints = Checkpoints(tmp_path_factory.mktemp("run"))
    checkpoints.save(12, state)
    loaded = checkpoints.load()
    assert (loaded.step, loaded.notes) == (12, ())
    assert same(state, loaded.state)


def test_a_learner_goes_on_from_a_checkpoint(tmp_path):
    """Modules, optimizers (whose keys are numbers), generators, shared and transposed memory."""

    def learner():
        network = torch.nn.Linear(5, 5)
        return network, torch.optim.Adam(network.parameters(), 0.01), torch.Generator().manual_seed(3)

    def update(network, optimizer, generator):
        optimizer.zero_grad()
        network(torch.randn(4, 5, generator=generator)).square().sum().backward()
        optimizer.step()

    first, second = learner(), learner()
    update(*first)
    numbers = np.random.default_rng(1)
    state = {
        "network": first[0].state_dict(),
        "optimizer": first[1].state_dict(),
        "generator": first[2].get_state(),
        "numpy": numbers.bit_generator.state,
        "views": [first[0].weight.T, first[0].weight, first[0].weight[1:]],
    }
    Checkpoints(tmp_path).save(1, state)
    loaded = Checkpoints(tmp_path).load().state
    second[0].load_state_dict(loaded["network"])
    second[1].load_state_dict(loaded["optimizer"])
    second[2].set_state(loaded["generator"])
    assert torch.equal(loaded["views"][0], first[0].weight.T)
    again = np.random.default_rng(2)
    again.bit_generator.state = loaded["numpy"]
    assert numbers.random() == again.random()
    for _ in range(3):
        update(*first)
        update(*second)
    assert torch.equal(first[0].weight, second[0].weight)
    loaded["views"][1] += 1  # what comes back can be written to


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({1, 2}, "the state at /learner/odd is a set, which cannot be kept"),
        (np.array(["a"]), "the state at /learner/odd is an array of <U1, which cannot be kept"),
    ],
)
def test_what_cannot_be_kept_is_named(tmp_path, value, sentence):
    with pytest.raises(GxError, match=sentence):
        Checkpoints(tmp_path).save(1, {"learner": {"odd": value}})
    assert list(tmp_path.iterdir()) == []


def test_the_newest_are_kept_and_the_same_step_may_be_saved_twice(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step, value in ((10, 1), (20, 2), (20, 3)):
        checkpoints.save(step, {"value": value})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000002-step-20", "000003-step-20"]
    assert Checkpoints(tmp_path).load().state == {"value": 3}
    with pytest.raises(GxError, match="keep=0"):
        Checkpoints(tmp_path, keep=0)


def test_no_checkpoint_is_a_sentence(tmp_path):
    with pytest.raises(GxError, match=r"absent holds no checkpoint that can be used: none was written"):
        Checkpoints(tmp_path / "absent").load()
    assert not (tmp_path / "absent").exists()


def flip(path: Path, place: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 4
    path.write_bytes(content)


def damage(how: str, file: Path) -> None:
    if how == "gone":
        file.unlink()
    elif how == "short":
        file.write_bytes(file.read_bytes()[:-3])
    else:
        flip(file, float(how))


@pytest.mark.parametrize("how", ["gone", "short", "0.0", "0.3", "0.5", "0.9", "1.0"])
@pytest.mark.parametrize("name", ["manifest.json", "state.json", "tensors.safetensors", "segment"])
def test_a_damaged_newest_falls_back_to_the_one_before_and_says_so(tmp_path, name, how):
    run = Run(tmp_path)
    for _ in range(2):
        run.advance(STEPS_BETWEEN)
        run.save()
    newest = max((tmp_path / "checkpoints").iterdir())
    file = tmp_path / "replay/000002.zip" if name == "segment" else newest / name
    damage(how, file)
    again = Run(tmp_path)
    (note,) = again.resume()
    assert note.startswith(str(file))
    assert note.endswith("the checkpoint before it is used instead")
    assert again.step == STEPS_BETWEEN
    again.advance(STEPS_BETWEEN)
    again.save()
    # the damaged one made room, and the good one before it is still there
    assert not newest.exists()
    assert [p.name for p in sorted((tmp_path / "checkpoints").iterdir())] == [
        "000001-step-25",
        "000003-step-50",
    ]
    assert Run(tmp_path).resume() == ()


def test_when_all_are_damaged_each_is_named(tmp_path):
    run = Run(tmp_path)
    for _ in range(2):
        run.advance(5)
        run.save()
    for folder in (tmp_path / "checkpoints").iterdir():
        flip(folder / "state.json", 0.5)
    with pytest.raises(GxError, match=r"can be used: .*000002.* is damaged .*; .*000001.* is damaged"):
        Run(tmp_path).resume()


def test_a_full_disk_is_a_sentence_and_the_one_before_stays(tmp_path):
    """Files are limited to less than the tensors take: writing really fails."""
    checkpoints = Checkpoints(tmp_path / "run")
    checkpoints.save(1, {"weights": torch.arange(10)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        sentence = r"checkpoint of step 2 cannot be written \(File too large\); .* are untouched"
        with pytest.raises(GxError, match=sentence):
            checkpoints.save(2, {"weights": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["000001-step-1"]
    assert Checkpoints(tmp_path / "run").load().step == 1
    checkpoints.save(2, {"weights": torch.zeros(100_000)})
    assert Checkpoints(tmp_path / "run").load().step == 2


def kill_and_resume(folder: Path, seed: int, kills: int) -> None:
    """Kill -9 a process that does nothing but save, then check that all of a whole state is there."""
    moments = np.random.default_rng(seed)
    program = Path(__file__).with_name("checkpoint_process.py")
    last = 0
    for _ in range(kills):
        with subprocess.Popen(
            [sys.executable, program, folder], stdout=subprocess.PIPE, text=True
        ) as process:
            said = [process.stdout.readline(), process.stdout.readline()]  # a checkpoint is there by then
            time.sleep(float(moments.uniform(0, 0.12)))
            process.send_signal(signal.SIGKILL)
            said += process.stdout.read().splitlines()
        resumed, expected = Run(folder), Run(folder / "undisturbed")
        assert resumed.resume() == ()
        announced = [int(line) for line in said if line.strip().isdigit()]
        assert resumed.step >= max([last, *announced])  # what was announced is there
        for _ in range(resumed.step // STEPS_BETWEEN):
            expected.advance(STEPS_BETWEEN)
        assert torch.equal(resumed.weights, expected.weights)
        found, wanted = resumed.ring.state(), expected.ring.state()
        assert found[1] == wanted[1]
        for name, column in wanted[0].items():
            np.testing.assert_array_equal(found[0][name], column)
        last = resumed.step
    resumed.advance(STEPS_BETWEEN)
    resumed.save()
    hidden = [path for path in folder.rglob(".*") if path.is_file() or path.is_dir()]
    assert hidden == []  # what was half written is gone


def test_a_killed_process_leaves_a_whole_state(tmp_path):
    kill_and_resume(tmp_path, seed=0, kills=3)


@pytest.mark.long
def test_a_process_killed_many_times_leaves_a_whole_state(tmp_path):
    kill_and_resume(tmp_path, seed=1, kills=40)


def test_a_moved_run_finds_its_segments(tmp_path):
    run = Run(tmp_path / "here")
    run.advance(30)
    run.save()
    (tmp_path / "here").rename(tmp_path / "there")
    moved = Run(tmp_path / "there")
    assert moved.resume() == ()
    assert moved.step == 30
    manifest = next((tmp_path / "there" / "checkpoints").glob("*/manifest.json"))
    assert list(json.loads(manifest.read_text())["outside"]) == ["../replay/000001.zip"]
