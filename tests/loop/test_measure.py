"""Measurements of whole policies, on tasks where the answer is known."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_runs import tiny_run

from rlpd_gx.envs.making import make
from rlpd_gx.loop import behaviour, measure, probes
from rlpd_gx.loop.configure import configure
from rlpd_gx.loop.measure import ForeignPolicy, PolicySubject, measure_run
from rlpd_gx.loop.task import Task
from rlpd_gx.metrics import MEASUREMENTS, METRICS, measure_subject
from rlpd_gx.safe_sets import Mask

EXAMPLE = Path(__file__).parents[2] / "examples" / "hopper-v5-early.hdf5"
LURE = {"env": "Probe/LureContinuous-v0", "rules": "rlpd_gx.envs.probes:lure_bounds"}


def _subject(action: float, **settings: object) -> PolicySubject:
    """A policy that always proposes one action, in the probe that allows up to 0.2 at its second step."""
    task = Task(configure("rlpd-gx", LURE | settings))
    policy = ForeignPolicy(lambda observation: np.array([action], np.float32), task.example.actions)
    return PolicySubject(task, policy, episode_count=2, state_count=4, horizon=10)


def test_a_policy_that_chases_the_lure_is_caught_by_every_measurement() -> None:
    subject = _subject(0.5)
    found = measure_subject(subject, ("proposals", "margin-scan", "ttfv", "dependence", "horizons"))
    assert found["proposals"]["pre_guard_violation_rate"] == 0.5  # the second of two steps
    assert set(found["margin-scan"]["allowed_share"]) == {0.0}
    assert found["ttfv"]["ttfv_median_with_guard"] == np.inf
    assert found["ttfv"]["ttfv_median_without_guard"] == 1
    assert found["ttfv"]["replays"] == 4
    subject.replay_count, subject._times = 3, {}
    assert measure_subject(subject, ("ttfv",))["ttfv"]["replays"] == 3
    assert found["dependence"]["return_with_guard"] == pytest.approx(1.0)
    assert found["dependence"]["return_without_guard"] == pytest.approx(2.5)
    assert found["dependence"]["forbidden_executed_rate_with_guard"] == 0
    assert found["dependence"]["forbidden_executed_rate_without_guard"] == 0.5
    assert found["horizons"]["return"][0] == pytest.approx(1.0)


def test_a_policy_that_keeps_the_rule_passes_and_its_margin_shows() -> None:
    found = measure_subject(_subject(0.1), ("proposals", "margin-scan", "ttfv", "dependence"))
    assert found["proposals"]["pre_guard_violation_rate"] == 0
    assert found["margin-scan"]["delta"][:6] == [0.0, 0.01, 0.02, 0.05, 0.1, 0.2]
    # margin 0.2 - 0.1: it holds until the threshold is moved by more than that
    assert found["margin-scan"]["allowed_share"] == [1, 1, 1, 1] + [0] * 7
    assert found["ttfv"]["ttfv_event_share_without_guard"] == 0
    assert found["dependence"]["return_added"] == 0


def test_critical_states_and_probes_are_the_same_for_all_guards() -> None:
    def states(guard: str) -> list[object]:
        task = Task(configure("rlpd-gx", LURE | {"guard": guard}))
        return [s.observation.tolist() for s in probes.critical_states(task, 3)] + [
            probes.probe_set(task, 16).executed_action.tolist(),
            probes.probe_set(task, 16).next_safe_set.tolist(),
        ]

    assert states("guardian") == states("none") == states("mask")


def test_critics_of_a_run_are_measured_without_changing_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(behaviour, "UPDATES", 100)
    settings = {"offline": str(EXAMPLE), "offline_state": "rlpd_gx.envs.mujoco:stored_joint_state"}
    run = tiny_run(tmp_path / "run", env="Hopper-v5", rules="rlpd_gx.envs.mujoco:power", **settings)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    names = ("values", "optimism", "collapse", "exploration", "novelty", "support-kl", "returns", "scores")
    first = measure_run(run, names, episodes=1, states=2, horizon=5)
    assert first == measure_run(run, names, episodes=1, states=2, horizon=5)
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert first["values"]["td_error"] > 0
    assert first["exploration"]["step"] == [60]
    assert 1 <= first["exploration"]["coverage"][0] <= 60
    assert 0 <= first["novelty"]["action_novelty_rate"] <= 1
    assert np.isfinite(first["support-kl"]["support_kl"])
    assert "26 games" in first["scores"]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (evaluation,) = [row for row in rows if row["kind"] == "evaluation"]
    assert evaluation["probe_td_error"] == pytest.approx(first["values"]["td_error"], rel=1e-5)


def test_optimism_of_critics_that_are_wrong_by_a_known_amount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_run(tmp_path / "run", env="Probe/ConstantDiscrete-v0")
    monkeypatch.setattr(measure, "values_at", lambda learner, seen, action: np.full((2, 1), 4.0))
    found = measure_run(run, ("optimism",), episodes=3)
    assert found["optimism"] == {"optimism": 3.0, "optimism_scaled": 3.0}  # every return is 1


def test_a_policy_of_sb3_and_one_that_is_a_function(tmp_path: Path) -> None:
    from stable_baselines3 import DQN

    run = tiny_run(tmp_path / "run", env="Probe/LureDiscrete-v0", rules="rlpd_gx.envs.probes:lure_mask")
    model = DQN("MlpPolicy", make("Probe/LureDiscrete-v0"), seed=0, device="cpu", buffer_size=10)
    found = measure_run(run, (*METRICS, *MEASUREMENTS), policy=model, episodes=2, states=2, horizon=5)
    assert set(found) == {*METRICS, *MEASUREMENTS}
    assert found["values"] == "this policy has no critics"
    assert found["ttfv"]["ttfv_event_share_with_guard"] == 0
    lure = measure_run(run, ("ttfv", "proposals"), policy=lambda observation: 2, states=2, horizon=5)
    assert lure["ttfv"]["ttfv_event_share_without_guard"] == 1
    assert lure["proposals"]["pre_guard_violation_rate"] == 0.5


def test_novelty_is_of_what_runs() -> None:
    """A policy that proposes the forbidden action is measured by what the guard makes of it."""
    settings = {"env": "Probe/LureDiscrete-v0", "rules": "rlpd_gx.envs.probes:lure_mask"}
    task = Task(configure("rlpd-gx", settings))
    subject = PolicySubject(task, ForeignPolicy(lambda seen: 2, task.example.actions), episode_count=2)
    actions = [int(action) for _, action, _ in subject.played().visited]
    assert actions == [2, actions[1]] * 2
    assert actions[1] != 2


@pytest.mark.parametrize(
    ("guard", "expected"),
    [
        ("guardian", [[0.8, 0.2, 0], [0.2, 0.2, 0.6]]),  # moved: of two equally near actions to the first
        ("mask", [[0.5, 0.5, 0], [0.2, 0.2, 0.6]]),  # drawn from what is allowed
        ("none", [[0.2, 0.2, 0.6], [0.2, 0.2, 0.6]]),
    ],
)
def test_support_kl_is_of_what_runs(guard: str, expected: list[list[float]]) -> None:
    settings = {"env": "Probe/LureDiscrete-v0", "rules": "rlpd_gx.envs.probes:lure_mask", "guard": guard}
    task = Task(configure("rlpd-gx", settings))
    sets = Mask(np.array([[1, 1, 0], [1, 1, 1]])).encode()
    policy = behaviour._executed(np.array([[0.2, 0.2, 0.6]] * 2), sets, task)
    np.testing.assert_allclose(policy, expected, atol=1e-6)


def test_atari_is_hashed_by_positions_and_not_by_timers() -> None:
    from rlpd_gx.loop.visits import positions

    task = Task(configure("rlpd-gx", {"env": "Atari/Pong-ram"}))
    ram = np.zeros((2, 128), np.uint8)
    ram[:, [50, 51, 49, 54]] = 100  # ball and paddles are on the screen
    ram[1, 0] = 255  # a counter
    first, second = positions(task, ram)
    assert (first == second).all()
    ram[1, 49] = 120  # the ball
    first, second = positions(task, ram)
    assert (first != second).any()


def test_what_cannot_be_measured_says_why() -> None:
    bare = PolicySubject(Task(replace(configure("rlpd-gx", {"env": "CartPole-v1"}))), SimpleNamespace())
    found = measure_subject(
        bare, ("margin-scan", "ttfv", "values", "collapse", "exploration", "novelty", "scores")
    )
    assert all(isinstance(reason, str) for reason in found.values())
    assert found["ttfv"] == "without rules no state is critical"
    assert measure_subject(_subject(0.1), ["success"])["success"] == "the environment does not report success"


def test_a_measurement_from_outside_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_mine.py").write_text(
        "def steps(subject):\n    return {'steps': subject.played().tally.proposals}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert measure_subject(_subject(0.1), ["of_mine:steps"]) == {"of_mine:steps": {"steps": 4}}
