"""`rlpd-gx atari verify`, as a person calls it, and the statistics behind it."""

import json
from pathlib import Path

import numpy as np
import pytest

from rlpd_gx.cli.policies import load_policy
from rlpd_gx.envs.atari import GAMES, make
from rlpd_gx.experiments.look_ahead import Arm, summary, times_fewer

FEW = ("--min-steps", "250", "--max-steps", "250", "--depth", "4")


def test_results_are_kept_game_by_game(command, tmp_path):
    out = tmp_path / "verify.json"
    code, shown, error = command("atari", "verify", "boxing", *FEW, "--out", out)
    assert code == 0, error
    assert "Boxing" in shown
    first = json.loads(out.read_text())["games"]["Boxing"]
    without, guarded = first["without"], first["guarded"]
    assert without["steps"] == guarded["steps"] == 250
    assert without["simulated_steps"] == 0 < guarded["simulated_steps"]
    assert without["events"] > guarded["events"]
    assert first["times_fewer"] == (without["events"] + 0.5) / (guarded["events"] + 0.5)
    code, shown, error = command("atari", "verify", "Freeway", "--depth", 4, "--min-steps", 500, "--max-steps", 500,
                                 "--guarded-steps", 250, "--out", out)  # fmt: skip
    assert code == 0, error
    both = json.loads(out.read_text())["games"]
    assert list(both) == ["Boxing", "Freeway"]
    assert [both["Freeway"][arm]["steps"] for arm in ("without", "guarded")] == [500, 250]
    assert both["Boxing"] == first
    text = out.with_suffix(".txt").read_text()
    assert "2 games, policy random" in text
    assert first["command"] in text

    marked = {"games": {"Boxing": {**first, "mark": "kept"}}}
    out.write_text(json.dumps(marked))
    command("atari", "verify", "Boxing", *FEW, "--out", out)
    assert json.loads(out.read_text()) == marked  # the same rule and settings: nothing is played again
    code, _, error = command("atari", "verify", "Boxing", *FEW[:-1], "5", "--out", out)
    assert code == 0, error
    again = json.loads(out.read_text())["games"]["Boxing"]
    assert again["depth"] == 5
    assert again["without"]["events"] == without["events"]  # paired: the same seeds, the same games


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("Tetris",), "'Tetris' is not one of the 26 Atari games"),
        (("Pong", "--out", "nowhere/v.json"), "the folder nowhere does not exist"),
        (("Pong", "--policy", "module"), "--policy module: there is no such folder"),
    ],
)
def test_mistakes_are_one_sentence(command, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    code, _, error = command("atari", "verify", *arguments)
    assert code == 2
    assert sentence in error
    assert error.count("\n") == 1


def test_a_file_of_something_else_is_not_overwritten(command, tmp_path):
    out = tmp_path / "v.json"
    out.write_text("[]")
    code, _, error = command("atari", "verify", "Pong", "--out", out)
    assert (code, out.read_text()) == (2, "[]")
    assert "is no result of `atari verify`" in error


def test_intervals_of_counts_are_exact():
    none = summary(Arm(steps=1000, events=0, score=[1.0] * 4, milliseconds=[1.0]))
    assert none["events_per_1000"] == 0.5
    assert none["events_per_1000_interval"] == pytest.approx([0.0, -np.log(0.025)])  # exp(-high) = 0.025
    assert none["score_per_1000_interval"] == [4.0, 4.0]
    ten = summary(Arm(steps=2000, events=10, score=[0.0, 8.0] * 4, milliseconds=[1.0, 2.0, 9.0]))
    assert ten["events_per_1000_interval"] == pytest.approx([4.795389 / 2, 18.390356 / 2])  # as tabled for 10
    low, high = ten["score_per_1000_interval"]
    assert low < ten["score_per_1000"] == 16.0 < high
    assert ten["milliseconds_median"] == 2.0


def test_the_ratio_of_rates_has_its_exact_interval():
    def fewer(without, guarded, steps=1000):
        return times_fewer(Arm(steps=1000, events=without), Arm(steps=steps, events=guarded))

    middle, low, high = fewer(30, 0)
    assert (middle, high) == (61, np.inf)
    share = 1 - 0.025 ** (1 / 30)  # (1 - share)^30 = 0.025
    assert low == pytest.approx((1 - share) / share)
    # half as long says half as much
    assert fewer(30, 0, steps=500) == pytest.approx((middle / 2, low / 2, np.inf))
    middle, low, high = fewer(10, 10)
    assert middle == 1
    assert low == pytest.approx(1 / high)  # nothing tells them apart
    middle, low, high = fewer(0, 20)
    assert high < 1  # significantly more


def test_the_held_policy_keeps_its_actions_for_a_while():
    env = make("Boxing")

    def play(seed):
        policy = load_policy("held", env, seed)
        return [policy(None) for _ in range(4000)]

    story = play(0)
    changes = np.count_nonzero(np.diff(story))
    assert 4000 / changes == pytest.approx(8 * 18 / 17, rel=0.1)  # one draw in 18 repeats the action
    assert set(story) == set(range(18))
    assert play(0) == story != play(1)


def test_the_committed_results_hold_what_is_promised():
    """All 26 games; nowhere significantly more events; the numbers that the documentation gives."""
    root = Path(__file__).parents[2]
    games = json.loads((root / "results" / "atari-verify.json").read_text())["games"]
    assert list(games) == sorted(GAMES)
    assert not [n for n, found in games.items() if (found["times_fewer_interval"][1] or np.inf) < 1]
    fewer = np.array([found["times_fewer"] for found in games.values()])
    mean, twice = np.exp(np.log(fewer).mean()), int((fewer >= 2).sum())
    page = " ".join((root / "docs" / "results.md").read_text().split())
    assert (
        f"events were {mean:.1f} times rarer (counted as (events + 0.5) / steps), at least twice in {twice},"
        in page
    )
    quiet = sum(found["guarded"]["events"] == 0 for found in games.values())
    assert f"No event was seen under the guard in {quiet} games" in page


def test_policies_and_guards_side_by_side_on_the_same_seeds(command, tmp_path):
    out, run = tmp_path / "v.json", tmp_path / "run"
    small = ("--steps", 40, "--learning-starts", 20, "--hidden-sizes", 8, "--ensemble-size", 2, "--batch-size", 8,
             "--evaluation-episodes", 1, "--evaluate-every", 0, "--utd", 0.25, "--device", "cpu")  # fmt: skip
    code, _, error = command("train", "--env", "Atari/Freeway-objects", "--env-kwargs", '{"max_episode_steps": 30}',
                             *small, "--out", run)  # fmt: skip
    assert code == 0, error
    words = ("atari", "verify", "Freeway", "--min-steps", 250, "--max-steps", 250, "--out", out)
    code, _, error = command(*words, "--policy", "random", run, "--guard", "ram", "both", "--depth", 4)
    assert code == 0, error
    games = json.loads(out.read_text())["games"]
    keys = [f"Freeway, {policy}, {guard}" for policy in ("random", run) for guard in ("ram", "both")]
    assert sorted(games) == sorted(keys)
    for policy in ("random", run):
        ram, both = (games[f"Freeway, {policy}, {guard}"] for guard in ("ram", "both"))
        assert ram["without"] == both["without"]  # the same games, played once
        assert (ram["guard"], both["guard"]) == ("ram", "both")
        assert ram["guarded"]["simulated_steps"] == 0 < both["guarded"]["simulated_steps"]
    trained = games[keys[2]]
    assert trained["observation"] == "objects"  # what it was trained on
    assert trained["trained"]["step"] == 40
    assert f"{run}, ram: 1 games" in out.with_suffix(".txt").read_text()


def test_a_file_of_another_version_is_one_sentence(command, tmp_path):
    out = tmp_path / "v.json"
    games = json.loads((Path(__file__).parents[2] / "results" / "atari-verify.json").read_text())["games"]
    old = {name: value for name, value in games["Pong"].items() if name != "times_fewer"}
    out.write_text(json.dumps({"games": {"Boxing": games["Boxing"], "Pong": old}}))
    before = out.read_bytes()
    code, _, error = command("atari", "verify", "Boxing", *FEW, "--out", out)
    assert (code, out.read_bytes()) == (2, before)
    assert "Pong has no 'times_fewer': it was written by another version" in error
