"""What a sweep will cost: known answers, and runs that experiments share."""

from made_rows import made_rows, write

from rlpd_gx import guards
from rlpd_gx.cli.reproduce import reproduce
from rlpd_gx.experiments.budget import Budget, budgets
from rlpd_gx.experiments.experiment import RAM_RULES, SCALES, Request
from rlpd_gx.experiments.offline import data_for
from rlpd_gx.experiments.plan import offline_name
from rlpd_gx.experiments.reproduced import find
from rlpd_gx.experiments.rows import Table
from rlpd_gx.experiments.sweep import Sweep
from rlpd_gx.loop.configure import configure
from rlpd_gx.settings import flat


def sweep(name, tables, games=("Freeway",), seeds=1):
    plan = find(name).plan(Request(SCALES["cpu"], lambda task: "", games, seeds))
    return Sweep(name, plan, tables / "runs", Table(tables / f"{name}.jsonl"))


def test_without_finished_runs_the_time_is_unknown(tmp_path):
    (found,) = budgets([sweep("ablation", tmp_path)], [])
    assert found == Budget("ablation", 6, 6, 300_000, 0.0, 6)
    assert str(found) == "ablation: 6 of 6 runs to do, 300,000 steps, time unknown"


def test_the_speed_is_that_of_the_runs_most_alike(tmp_path):
    rows = made_rows(
        "ablation", lambda game, variant: 1.0, seeds=1, games=("Pong",)
    )  # 600 s for 20,000 steps
    for row in rows:
        row["seconds"] = 1200.0 if row["variant"] == "without DTS" else 600.0
    write(tmp_path, "ablation", rows)
    (found,) = budgets([sweep("ablation", tmp_path)], rows)
    assert found.minutes == 50_000 / 20_000 * (5 * 600 + 1200) / 60
    (ahead,) = budgets([sweep("planning", tmp_path)], rows)
    assert ahead.unknown == ahead.runs  # look-ahead is slower than any of these
    (pixels,) = budgets([sweep("pixels", tmp_path)], rows)
    assert pixels.unknown == pixels.runs  # and so are pixels


def test_cloning_takes_as_long_as_other_cloning_and_an_unknown_part_does_not_hide_the_rest(tmp_path):
    rows = made_rows("atari100k", lambda game, variant: 1.0, seeds=1, games=("Pong",))
    for row in rows:
        row["training"], row["seconds"] = {"steps": 100_000}, 300.0
        if "cloning" in row["variant"]:
            row["training"], row["seconds"] = {"steps": 0}, 120.0
    (found,) = budgets([sweep("atari100k", tmp_path)], rows)
    assert (found.minutes, found.unknown) == ((2 * 120 + 4 * 300) / 60, 0)
    cloned = [row for row in rows if "cloning" in row["variant"]]
    (found,) = budgets([sweep("atari100k", tmp_path)], cloned)
    assert (found.runs, found.minutes, found.unknown) == (6, 2 * 120 / 60, 4)
    assert str(found).endswith("about 4 core-minutes and 4 runs of unknown time")


def test_a_run_that_two_experiments_share_is_paid_for_once(tmp_path):
    ablation, shield = budgets([sweep("ablation", tmp_path), sweep("shield", tmp_path)], [])
    assert (ablation.runs, shield.planned, shield.runs, shield.steps) == (6, 3, 0, 0)
    assert budgets([sweep("shield", tmp_path)], [])[0].runs == 3


def test_what_has_a_row_is_not_to_do(tmp_path):
    write(tmp_path, "ablation", made_rows("ablation", lambda game, variant: 1.0, seeds=1, games=("Freeway",)))
    (found,) = budgets([sweep("ablation", tmp_path, seeds=2)], [])
    assert (found.planned, found.runs) == (12, 6)


def test_the_command_runs_nothing(tmp_path, capsys):
    reproduce("shield", out=tmp_path / "out", plan=True)
    assert "shield: 3 of 3 runs to do, 144 steps, time unknown" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    reproduce("dts-late", out=tmp_path / "out", plan=True)
    assert "dts-late: 4 of 4 runs to do" in capsys.readouterr().out  # three, and the one that they fork from


def test_the_shield_of_the_experiment_is_that_of_the_guard():
    """It runs as an ablation, so that both experiments share it: only the name of the guard differs."""
    shield = configure("full", {"rules": RAM_RULES, "guard": "shield"})
    ablation = configure("no-guarded-backup", {"rules": RAM_RULES})
    differing = {name: value for name, value in flat(shield).items() if value != flat(ablation)[name]}
    assert differing.keys() == {"guard", "preset"}
    assert type(guards.find("shield")) is type(guards.find("guardian")) is guards.Guard
    assert guards.find("shield").mode == guards.find("guardian").mode


def test_data_is_found_by_a_word_of_its_name(tmp_path):
    for name in ("ChopperCommand.json.gz", "hopper-v5-early.hdf5", "D4RL_pen_human-v2.hdf5", "Pong.json.gz"):
        (tmp_path / name).touch()
    data = data_for(SCALES["cpu"], tmp_path, tmp_path)
    assert data("Hopper") == str(tmp_path / "hopper-v5-early.hdf5")
    assert data("pen") == str(tmp_path / "D4RL_pen_human-v2.hdf5")
    assert data("ChopperCommand") == str(tmp_path / "ChopperCommand.json.gz")
    assert data("Command") == ""


def test_pixels_take_recorded_games_of_the_package_unless_somebody_brings_data(tmp_path):
    def planned(folder):
        request = Request(SCALES["cpu"], data_for(SCALES["cpu"], folder, tmp_path), seeds=1)
        return [offline_name(run.values["offline"]) for run in find("pixels").plan(request)]

    assert planned(None) == ["recorded", "planner", "planner"]
    for game in ("Pong", "Boxing", "Freeway"):
        (tmp_path / f"{game}.json.gz").touch()
    assert planned(tmp_path) == ["Pong.json.gz", "Boxing.json.gz", "Freeway.json.gz"]
