"""`rlpd-gx data convert|audit|list`."""

import json

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


def test_audit(command, pendulum):
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


def test_corrections_are_unknown_without_proposals(command, pendulum, tmp_path):
    def share(path):
        return json.loads(command("data", "audit", path, "--json")[1])["corrected_share"]

    with np.load(pendulum) as file:
        columns = dict(file)
    assert command("data", "convert", pendulum, "--out", tmp_path / "plain")[0] == 0
    assert share(pendulum) is share(tmp_path / "plain") is None
    columns["actions"][3] = np.nan  # differs from itself
    np.savez(tmp_path / "nan.npz", **columns)
    assert share(tmp_path / "nan.npz") is None
    with np.load(pendulum) as file:
        columns = {**file, "proposed_actions": file["actions"].copy()}
    for name, expected in (("followed", 0), ("corrected", 1 / 18)):
        np.savez(tmp_path / f"{name}.npz", **columns)
        command("data", "convert", tmp_path / f"{name}.npz", "--out", tmp_path / name)
        assert share(tmp_path / f"{name}.npz") == share(tmp_path / name) == expected
        columns["proposed_actions"][4] = 0


def test_a_converted_folder_is_audited_under_its_own_name(command, pendulum, tmp_path):
    command("data", "convert", pendulum, "--out", tmp_path / "swings")
    assert command("data", "audit", tmp_path / "swings")[1].startswith("swings (npz)")


def test_a_mapping_that_is_not_there(command, pendulum, tmp_path):
    code, _, err = command("data", "convert", pendulum, "--mapping", tmp_path / "none.json")
    assert code == 2
    assert "none.json: there is no such mapping; check the path" in err


def test_brackets_in_names_are_shown(command, tmp_path):
    units = ("pressure [bar]", "count [/min]", "speed [bold]")
    path = tmp_path / "log [red].csv"
    path.write_text(
        f"x,u,r,end,note [/a],{','.join(units)}\n" + "0,1.5,0.5,0,odd,1,2,3\n1,1.5,0.5,1,odd,1,2,3\n"
    )
    mapping = tmp_path / "mapping.json"
    mapping.write_text('{"observations": ["x"], "actions": ["u"], "rewards": "r", "terminals": "end"}')
    code, table, _ = command("data", "audit", path, "--mapping", mapping)
    assert code == 0
    flat = " ".join(table.replace("│", " ").split())
    for name in (*units, "log [red].csv", "note [/a]"):
        assert name in flat
    assert command("data", "convert", path, "--mapping", mapping)[0] == 0
    code, listed, _ = command("data", "list")
    assert code == 0
    assert "[red]" in listed


def test_the_wrong_environment(command, pendulum):
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


def test_a_log_with_gaps_is_audited_not_refused(command, tmp_path):
    (tmp_path / "log.csv").write_text("x,u,r,end\n0,1,0.5,0\n,1,nan,0\n2,1,0.5,0\n3,1,0.5,1\n")
    mapping = tmp_path / "mapping.json"
    mapping.write_text('{"observations": ["x"], "actions": ["u"], "rewards": "r", "terminals": "end"}')
    options = (tmp_path / "log.csv", "--mapping", mapping)
    code, out, _ = command("data", "audit", *options, "--json")
    assert code == 0
    report = json.loads(out)
    assert report["not_finite_rows"] == {"observation": 1, "reward": 1}
    assert any("'observations/x', row 1: is empty or NaN" in finding for finding in report["findings"])
    code, _, err = command("data", "convert", *options)
    assert code == 2
    assert "row 1: is empty or NaN" in err


def test_all_texts_among_numbers_are_in_the_audit_of_a_table(command, tmp_path):
    rows = ["0,1,0.5,0", "-,1,0.5,0", "2,1,None,0", "3,1,?,0", "4,1,0.5,1"]
    (tmp_path / "log.csv").write_text("\n".join(["x,u,r,end", *rows]) + "\n")
    mapping = tmp_path / "mapping.json"
    mapping.write_text('{"observations": ["x"], "actions": ["u"], "rewards": "r", "terminals": "end"}')
    options = (tmp_path / "log.csv", "--mapping", mapping)
    code, out, err = command("data", "audit", *options, "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["not_finite_rows"] == {"observation": 1, "reward": 2}
    found = "\n".join(report["findings"])
    assert "'x', row 1: is '-', not a number;" in found
    assert "'r', row 2: is 'None', not a number (2 such cells, in rows 2, 3);" in found
    code, _, err = command("data", "convert", *options)
    assert code == 2
    assert "'x', row 1: is '-', not a number; store numbers, with a decimal point" in err


def test_steps_are_selected_by_the_mapped_episode_column(command, tmp_path):
    rows = [f"{run},{t},1,0.5,{int(t == 3)}" for run in range(3) for t in range(4)]
    (tmp_path / "log.csv").write_text("\n".join(["run,x,u,r,end", *rows]) + "\n")
    columns = {"observations": ["x"], "actions": ["u"], "rewards": "r", "terminals": "end", "episode": "run"}
    (tmp_path / "mapping.json").write_text(json.dumps(columns))
    options = (tmp_path / "log.csv", "--mapping", tmp_path / "mapping.json", "--where", "run <= 1")
    code, out, err = command("data", "convert", *options, "--out", tmp_path / "kept")
    assert code == 0, err
    assert out.startswith("8 steps in 2 episodes")


def test_a_time_limit_in_a_log_without_next_observations(command, tmp_path):
    rows = [f"{t},1,0.5,{int(t % 60 == 59)}" for t in range(180)]
    (tmp_path / "log.csv").write_text("\n".join(["x,u,r,end", *rows]) + "\n")
    mapping = tmp_path / "mapping.json"
    mapping.write_text('{"observations": ["x"], "actions": ["u"], "rewards": "r", "terminals": "end"}')
    kept = tmp_path / "kept"
    code, out, err = command(
        "data", "convert", tmp_path / "log.csv", "--mapping", mapping, "--time-limit", 60, "--out", kept
    )
    assert (code, out) == (0, f"177 steps in 3 episodes in {kept}\n")
    assert "their last step is left out" in err
    line = load(kept).timeline
    assert line.observation[:, 0].tolist() == list(range(180))
    assert not line.terminated.any()


def test_what_an_older_version_left_in_the_cache_is_only_noted(command, pendulum, tmp_path):
    command("data", "convert", pendulum)
    old = tmp_path / "cache" / "old"
    old.mkdir()
    (old / "meta.json").write_text('{"rlpd_gx_dataset": 2}')
    code, out, err = command("data", "list")
    assert code == 0
    assert "pendulum.npz" in out
    assert "written in layout 2" in err


@pytest.mark.parametrize("action", ["audit", "convert"])
def test_a_file_that_is_not_there(command, tmp_path, action):
    code, _, err = command("data", action, tmp_path / "gone.hdf5")
    assert code == 2
    assert "gone.hdf5: no such file or folder" in err
