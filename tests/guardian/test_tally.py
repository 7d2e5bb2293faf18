"""One tally for audits and evaluation windows: it adds up, whichever way verdicts come in."""

import copy
import json
import pickle
import sys
import threading
import warnings

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import rlpd_gx as gx
from rlpd_gx.types import Tally

PLANE = gym.spaces.Box(-1, 1, (2,), np.float32)
THREE = gym.spaces.Discrete(3)
NEAR = 0.1


def limit(state):
    if state > 1:
        raise OSError("no signal")
    return [1.0, 1.0], state


def certified(states, proposals, mode):
    """The verdicts of a Guardian whose rules fail in some states; no episode has to stop."""
    rules = [gx.l1_rule(limit, name="power"), gx.rule(lambda s, a: bool(a[0] < 0.9), name="left")]
    guardian = gx.Guardian(PLANE, rules, near_miss=NEAR, mode=mode, fallback=np.zeros(2))
    return guardian, [guardian.certify(s, p) for s, p in zip(states, proposals, strict=True)]


cases = st.lists(
    st.tuples(
        st.sampled_from([-0.5, 0.3, 1.0, 2.0]),
        st.sampled_from([0.0, 0.28, 0.5, 0.95, np.nan]),
        st.sampled_from([0.0, 0.4]),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=40)
@given(cases, st.sampled_from(["enforce", "monitor"]))
def test_every_way_of_counting_gives_the_same_tally(rows, mode):
    # Where nothing is allowed, an unusable proposal stops the episode: no verdict to count again.
    assume(mode == "monitor" or not any(limit < 0 and np.isnan(x) for limit, x, _ in rows))
    states, proposals = np.array([r[0] for r in rows]), np.array([r[1:] for r in rows], np.float32)
    guardian, verdicts = certified(states, proposals, mode)
    tally = guardian.audit.tally
    statuses = ("allowed", "projected", "fallback", "inevitable", "stopped")
    assert tally.proposals == len(rows) == sum(getattr(tally, s) for s in statuses)
    window = Tally()
    for verdict in verdicts:
        window.add(verdict, NEAR, unsafe_event=True)
    assert window.unsafe_events == len(rows)
    window.unsafe_events = 0
    assert window == tally
    halves = Tally(), Tally()
    for i, verdict in enumerate(verdicts):
        halves[i % 2].add(verdict, NEAR)
    both = halves[0] + halves[1]
    assert both.distance == pytest.approx(tally.distance)
    assert {**both.as_dict(), "distance": 0, "rules": 0} == {**tally.as_dict(), "distance": 0, "rules": 0}
    assert Tally.from_dict(json.loads(json.dumps(tally.as_dict()))) == tally
    again = gx.Guardian(PLANE, guardian.rules, near_miss=NEAR, mode=mode, fallback=np.zeros(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the rules are not batched
        again.certify_batch(states, proposals)
    batch = again.audit.tally
    assert batch.distance == pytest.approx(tally.distance)
    batch.distance = tally.distance
    for name, rule in batch.rules.items():
        assert rule.depth == pytest.approx(tally.rules[name].depth)
        rule.depth = tally.rules[name].depth
    assert batch == tally


def test_forbidden_actions_are_counted_as_proposed_and_as_executed():
    for mode, executed in (("enforce", 0), ("monitor", 2)):
        guardian, _ = certified([0.3] * 3, np.array([[0.1, 0], [0.5, 0], [0.95, 0]], np.float32), mode)
        assert guardian.audit.tally.forbidden_proposals == 2
        assert guardian.audit.tally.forbidden_executed == executed
    guardian, _ = certified([-0.5], np.zeros((1, 2), np.float32), "enforce")
    assert guardian.audit.tally.inevitable == guardian.audit.tally.forbidden_executed == 1


def test_a_step_without_a_guard_counts_as_allowed():
    tally = Tally()
    tally.add(None, NEAR, unsafe_event=True)
    tally.add(None, NEAR)
    assert (tally.proposals, tally.allowed, tally.corrections, tally.unsafe_events) == (2, 2, 0, 1)
    assert tally.rates()["unsafe_events_rate"] == 0.5
    assert tally.rates()["corrections_rate"] == 0.0


# --- near misses -----------------------------------------------------------------------------------------------


def test_only_graded_margins_make_near_misses():
    masks = gx.Guardian(THREE, gx.mask_rule(lambda s: np.ones(3, bool)), near_miss=5.0)
    masks.certify(None, 0)
    yes = gx.Guardian(PLANE, gx.rule(lambda s, a: True), near_miss=5.0)
    yes.certify(None, np.zeros(2))
    graded = gx.Guardian(PLANE, gx.margin_rule(lambda s, a: 1.0), near_miss=5.0)
    graded.certify(None, np.zeros(2))
    assert [g.audit.tally.near_misses for g in (masks, yes, graded)] == [0, 0, 1]


def test_a_forbidden_proposal_is_no_near_miss():
    guardian, _ = certified([1.0], np.array([[0.95, 0.0]], np.float32), "enforce")
    tally = guardian.audit.tally
    assert (tally.forbidden_proposals, tally.near_misses) == (1, 0)
    assert tally.rules["power"].near_misses == 1  # that rule allowed it only just


# --- copies and threads ----------------------------------------------------------------------------------------


def only_first(state):
    return np.array([True, False, False])


def half(state):
    return np.full(1, -0.5), np.full(1, 0.5)


class Line(gym.Env):
    observation_space = gym.spaces.Box(-10, 10, (1,), np.float64)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1), {}

    def step(self, action):
        self.t += 1
        return np.zeros(1), 0.0, False, self.t >= 3, {}


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("kind", ["mask", "bounds"])
def test_a_copy_counts_for_itself_and_writes_into_no_file(copied, kind, tmp_path):
    path = tmp_path / "audit.jsonl"
    if kind == "mask":
        guardian = gx.Guardian(THREE, gx.mask_rule(only_first), audit=path)
        proposed = 1
    else:
        guardian = gx.Guardian(Line.action_space, gx.bounds_rule(half), audit=path, deadline=60.0)
        proposed = np.ones(1, np.float32)
    guardian.certify(None, proposed)
    before = path.read_bytes()
    twin = copied(guardian)
    for _ in range(3):
        assert twin.certify(None, proposed).status == "projected"
    twin.end_episode()
    assert path.read_bytes() == before
    assert (twin.audit.tally.corrections, guardian.audit.tally.corrections) == (4, 1)
    assert (twin.audit.tally.episodes, guardian.audit.tally.episodes) == (1, 0)
    guardian.certify(None, proposed)
    assert path.read_bytes().count(b"correction") == 2


def test_a_copied_environment_does_not_write_into_whatever_file_has_the_number_now(tmp_path):
    env = gx.GuardedEnv(Line(), gx.bounds_rule(half), audit=tmp_path / "audit.jsonl")
    env.reset(seed=0)
    twin = copy.deepcopy(env)
    del env  # closes its file
    with (tmp_path / "other.txt").open("wb") as other:  # gets the same descriptor
        twin.step(np.ones(1, np.float32))
        assert other.tell() == 0
    assert (tmp_path / "other.txt").read_bytes() == b""
    assert twin.audit.tally.corrections == 1


@pytest.mark.parametrize("kind", ["remembered", "predicate"])
def test_no_count_is_lost_between_threads(kind):
    rule = gx.mask_rule(only_first) if kind == "remembered" else gx.rule(lambda s, a: bool(a == 0))
    guardian = gx.Guardian(THREE, rule)
    each, interval = (20_000 if kind == "remembered" else 300), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def run():
        for i in range(each):
            guardian.certify(None, i % 3)
            if i % 50 == 0:
                assert guardian.audit.tally.proposals > 0

    try:
        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    tally = guardian.audit.tally
    assert tally.proposals == 3 * each
    assert tally.allowed == 3 * len(range(0, each, 3))
    assert tally.rules["only_first" if kind == "remembered" else "rule"].blocked == tally.corrections


# --- remembered verdicts ---------------------------------------------------------------------------------------


def test_a_lone_mask_rule_cannot_change_the_state():
    def erases(state):
        state *= 0
        return np.ones(3, bool)

    state = np.array([5.0])
    assert gx.Guardian(THREE, gx.mask_rule(erases), fallback=2).certify(state, 0).status == "fallback"
    assert state[0] == 5.0
    inside = {"x": state}
    gx.Guardian(THREE, gx.mask_rule(lambda s: erases(s["x"])), fallback=2).certify(inside, 0)
    assert state[0] == 5.0


@pytest.mark.parametrize("rules", [1, 2])
def test_a_rule_that_fails_once_is_not_asked_again(rules):
    asked = []

    def fails_first(state):
        asked.append(state)
        if len(asked) == 1:
            raise OSError("no signal")
        return np.ones(3, bool)

    given_rules = [gx.mask_rule(fails_first, name="flaky"), gx.mask_rule(lambda s: np.ones(3, bool))][:rules]
    guardian = gx.Guardian(THREE, given_rules, fallback=2)
    verdict = guardian.certify(None, 0)
    assert (verdict.status, verdict.action, len(asked)) == ("fallback", 2, 1)
    assert "rule 'flaky' raised OSError: no signal" in verdict.reason
    assert guardian.certify(None, 0).status == "allowed"


@pytest.mark.parametrize("shape", [(1, 3), (3, 1)])
def test_a_mask_of_another_shape_is_refused_even_if_its_bytes_are_known(shape):
    masks = [np.ones(3, bool), np.ones(shape, bool)]
    guardian = gx.Guardian(THREE, gx.mask_rule(lambda s: masks[s]), fallback=2)
    assert guardian.certify(0, 0).status == "allowed"
    assert guardian.certify(1, 0).status == "fallback"


def test_answers_that_are_no_masks_are_copied_before_the_next_rule_uses_the_buffer():
    buffer = np.zeros(3, np.int8)

    def first(state):
        buffer[:] = [0, 1, 1]
        return buffer

    def second(state):
        buffer[:] = [1, 1, 0]
        return buffer

    guardian = gx.Guardian(THREE, [gx.mask_rule(first), gx.mask_rule(second)])
    assert [int(guardian.certify(None, a).action) for a in range(3)] == [1, 1, 1]


def test_a_full_memory_changes_neither_verdicts_nor_counts(monkeypatch):
    import rlpd_gx.guardian.memory as memory

    monkeypatch.setattr(memory, "CAPACITY", 2)
    asked = []

    def all_but(state):
        asked.append(state)
        return np.arange(4) != state

    guardian = gx.Guardian(gym.spaces.Discrete(4), gx.mask_rule(all_but))
    for state in (0, 1, 2, 3, 2, 0):
        verdict = guardian.certify(state, 2)
        assert (verdict.status == "projected") == (state == 2)
    assert len(asked) == 6
    assert (guardian.audit.tally.proposals, guardian.audit.tally.projected) == (6, 2)


def test_a_fault_inside_never_lets_an_action_through(monkeypatch):
    from rlpd_gx.guardian.finite import FiniteJudge

    def faulty(*args, **options):
        raise RuntimeError("bug")

    guardian = gx.Guardian(THREE, gx.mask_rule(only_first), fallback=0)
    monkeypatch.setattr(FiniteJudge, "judge", faulty)
    verdict = guardian.certify(None, 1)
    assert (verdict.action, verdict.status) == (0, "fallback")
    assert "internal error, RuntimeError: bug" in verdict.reason
