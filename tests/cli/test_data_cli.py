"""`rlpd-gx data convert|audit|list`."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from rlpd_gx.replay.offline import load


@pytest.fixture
def pendulum(tmp_path):
    """Rows that fit Pendulum-v1 (torque within 2), two of them beyond, told by `iteration`."""
    steps = 20
    path = tmp_path / "pendulum.npz"
    np.savez(
        path,
        observations=np.zeros((steps, 3), np.float32),
        actions=np.linspace(-2, 2.5, steps, dtype=np.float32)[:, None],
        rewards=np.arange(steps, dtype=np.float32),
        terminals=np.zeros(steps, bool),
        timeouts=np.arange(steps) % 10 == 9,
        iteration=np.arange(steps) // 10,
        env_id="Pendulum-v1",
    )
    return path


def test_convert_list_and_load(command, pendulum):
    assert command("data", "list")[1].startswith("no dataset")
    code, out, err = command("data", "convert", pendulum)
    assert code == 0
    assert out.startswith("18 steps in 2 episodes in ")
    # The file names its environment, so its range is known without asking.
    assert "'actions', row 17: outside" in err
    _, listed, _ = command("data", "list")
    assert "pendulum.npz" in listed
    assert "Pendulum-v1" in listed


def test_convert_into_a_folder(command, pendulum, tmp_path):
    out = tmp_path / "kept"
    options = ("--where", "iteration == 1", "--clip-actions", "--env", "Pendulum-v1")
    code, printed, _ = command("data", "convert", pendulum, "--out", out, *options)
    assert (code, printed) == (0, f"9 steps in 1 episodes in {out}\n")
    assert load(out).timeline.executed_action.max() == 2
    assert command("data", "audit", out, "--env", "Pendulum-v1")[0] == 0
    code, _, err = command("data", "convert", pendulum, "--where", "iteration == 1")
    assert code == 2
    assert "--out" in err


def test_audit(command, pendulum, tmp_path):
    code, table, _ = command("data", "audit", pendulum)
    assert code == 0
    assert "actions out of range steps" in table
    report = json.loads(command("data", "audit", pendulum, "--json")[1])
    assert (report["steps"], report["actions_out_of_range_steps"]) == (18, 2)
    with np.load(pendulum) as file:
        columns = dict(file)
    columns["rewards"][3] = np.nan
    np.savez(pendulum, **columns)
    code, _, err = command("data", "convert", pendulum)
    assert code == 2
    assert f"{pendulum}: 'rewards', row 3: is NaN" in err
    code, out, _ = command("data", "audit", pendulum, "--json")
    assert code == 0
    assert json.loads(out)["not_finite_rows"] == {"reward": 1}
    assert command("data", "list")[1].startswith("no dataset")


def test_the_wrong_environment(command, pendulum, tmp_path):
    code, _, err = command("data", "convert", pendulum, "--env", "MountainCarContinuous-v0")
    assert code == 2
    assert "'env_id' is Pendulum-v1, not MountainCarContinuous-v0" in err
    code, _, err = command("data", "audit", pendulum, "--env", "Nowhere-v0")
    assert code == 2
    assert "--env Nowhere-v0" in err


def test_a_file_cannot_have_a_module_imported(command, pendulum, tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text("raise SystemExit('the trap was sprung')")
    monkeypatch.syspath_prepend(tmp_path)
    with np.load(pendulum) as file:
        columns = {**file, "env_id": "trap:Pendulum-v1"}
    np.savez(pendulum, **columns)
    assert command("data", "audit", pendulum)[0] == 0


def test_a_mapping(command, tmp_path):
    (tmp_path / "log.csv").write_text("x,u,r,end\n0,1,0.5,0\n1,1,0.5,1\n")
    mapping = tmp_path / "mapping.json"
    mapping.write_text('{"observations": ["x"], "actions": ["u"], "rewards": "r", "terminals": "end"}')
    code, out, _ = command("data", "convert", tmp_path / "log.csv", "--mapping", mapping)
    assert code == 0
    assert out.startswith("2 steps in 1 episodes")
    mapping.write_text("observations: x")
    code, _, err = command("data", "convert", tmp_path / "log.csv", "--mapping", mapping)
    assert code == 2
    assert "mapping.json" in err


def test_the_commands_of_the_documentation(command, tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    lines = text.partition("```sh\n")[2].partition("```")[0].strip().splitlines()
    assert len(lines) > 5
    monkeypatch.chdir(tmp_path)
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "rlpd-gx"
        code, _, err = command(*arguments)
        assert code == 0, f"{line}: {err}"


@pytest.mark.parametrize("action", ["audit", "convert"])
def test_a_file_that_is_not_there(command, tmp_path, action):
    code, _, err = command("data", action, tmp_path / "gone.hdf5")
    assert code == 2
    assert "gone.hdf5: no such file or folder" in err
