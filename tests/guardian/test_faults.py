"""Whatever goes wrong has a declared outcome, is counted, and lets no unchecked action through."""

import re
import threading
import time

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rlpd_gx as gx

PLANE = gym.spaces.Box(-1, 1, (2,), np.float32)
SAFE = np.array([0.1, 0.1], np.float32)
THREE = gym.spaces.Discrete(3)


def raises(state, *action):
    raise RuntimeError("sensor lost")


BAD_ANSWERS = {
    "raises": (raises, "raised RuntimeError: sensor lost"),
    "NaN": (lambda s: ([np.nan, 1.0], 1.0), "returned NaN"),
    "NaN threshold": (lambda s: ([1.0, 1.0], np.nan), "returned NaN"),
    "None": (lambda s: None, "returned None"),
    "wrong shape": (lambda s: ([1.0, 1.0, 1.0], 1.0), r"shape \(3,\), expected \(2,\)"),
    "not a pair": (lambda s: np.ones(2), "pair"),
    "text": (lambda s: (["1", "1"], 1.0), "plain numbers"),
    "complex": (lambda s: ([1j, 1], 1.0), "plain numbers"),
    "infinite weight": (lambda s: ([np.inf, 1], 1.0), "infinite w"),
}


def test_the_distance_to_a_fallback_is_that_of_corrections():
    def broken(state, action=None):
        raise ValueError

    weighted = gx.Guardian(PLANE, gx.l1_rule(broken), fallback=np.zeros(2), metric=[4.0, 1.0])
    assert weighted.certify(0, np.array([0.5, 0.0], np.float32)).distance == pytest.approx(1.0)
    three = gym.spaces.Discrete(3, start=1)
    placed = gx.Guardian(three, gx.mask_rule(broken), fallback=1, embedding=[[0.0], [1.0], [5.0]])
    assert placed.certify(0, 3).distance == pytest.approx(5.0)
    two = gym.spaces.MultiDiscrete([2, 3])
    nearer, farther = (
        gx.Guardian(two, gx.mask_rule(broken), fallback=a).certify(0, np.array([0, 0]))
        for a in ([0, 1], [1, 1])
    )
    assert 0 < nearer.distance < farther.distance


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_a_rule_that_gives_no_usable_answer_makes_the_fallback_run(name):
    fn, said = BAD_ANSWERS[name]
    guardian = gx.Guardian(PLANE, gx.l1_rule(fn, name="broken"), fallback=SAFE)
    verdict = guardian.certify(None, np.array([0.9, 0.9]))
    assert verdict.status == "fallback"
    assert np.array_equal(verdict.action, SAFE)
    assert not verdict.exact
    assert re.search(said, verdict.reason)
    assert "rule 'broken'" in verdict.reason
    assert guardian.audit.tally.fallback == 1
    assert sum(guardian.audit.tally.reasons.values()) == 1


@pytest.mark.parametrize("answer", [0.7, np.nan, None, "yes", np.array([True, False]), 2])
def test_a_predicate_must_say_yes_or_no(answer):
    guardian = gx.Guardian(PLANE, gx.rule(lambda s, a: answer, name="vague"), fallback=SAFE)
    assert guardian.certify(None, np.zeros(2)).status == "fallback"


@pytest.mark.parametrize(
    "mask", [np.array([True, False]), np.array([0.2, 0.8, 1.0]), np.array([np.nan, 1, 1]), None, "all"]
)
def test_a_mask_must_be_boolean_and_of_the_right_length(mask):
    guardian = gx.Guardian(THREE, gx.mask_rule(lambda s: mask), fallback=2)
    verdict = guardian.certify(None, 0)
    assert verdict.status == "fallback"
    assert verdict.action == 2


BAD_PROPOSALS = [
    np.array([np.nan, 0.0]),
    np.array([np.inf, 0.0]),
    np.zeros(3),
    0.5,
    None,
    "left",
    [[0.1], [0.2, 0.3]],
    np.array([1j, 0]),
    {"a": 1},
]


@pytest.mark.parametrize("proposed", BAD_PROPOSALS, ids=str)
def test_a_proposal_that_is_no_action_is_replaced(proposed):
    for space, fallback in ((PLANE, SAFE), (THREE, 2), (gym.spaces.MultiDiscrete([2, 2]), [1, 1])):
        rule = (
            gx.bounds_rule(lambda s: ([-0.5] * 2, [0.5] * 2))
            if space is PLANE
            else gx.rule(lambda s, a: True)
        )
        guardian = gx.Guardian(space, rule, fallback=fallback)
        verdict = guardian.certify(None, proposed)
        assert verdict.status == "fallback"
        assert np.array_equal(verdict.action, fallback)
        assert "proposal" in verdict.reason
        assert all(c.blocked == 0 for c in guardian.audit.tally.rules.values())


@pytest.mark.parametrize("proposed", [1e39, -1e300])
def test_finite_proposals_beyond_the_type_of_the_space_are_projected(proposed):
    guardian = gx.Guardian(PLANE, gx.bounds_rule(lambda s: ([-0.5] * 2, [0.5] * 2)))
    verdict = guardian.certify(None, np.array([proposed, 0.2]))
    assert verdict.status == "projected"
    assert verdict.action[0] == pytest.approx(0.5 * np.sign(proposed))
    assert abs(verdict.action[1]) <= 0.5


@pytest.mark.parametrize("proposed", [3, -1, 1.0, True, np.array([0.0])])
def test_numbers_that_are_no_discrete_action(proposed):
    guardian = gx.Guardian(THREE, gx.mask_rule(lambda s: np.ones(3, bool)), fallback=2)
    guardian.certify(None, 1)  # 1 == True == 1.0: what is remembered of one must not answer for the others
    assert guardian.certify(None, proposed).status == "fallback"


def test_tensors_and_zero_dimensional_arrays_are_fine():
    guardian = gx.Guardian(THREE, gx.mask_rule(lambda s: np.array([False, True, True])))
    assert guardian.certify(None, np.array(0)).action == 1
    assert guardian.certify(None, torch.tensor(0)).action == 1
    plane = gx.Guardian(PLANE, gx.l1_rule(lambda s: (torch.ones(2), torch.tensor(1.0))))
    assert plane.certify(None, torch.tensor([1.0, 0.0])).status == "allowed"


def test_without_a_fallback_the_previous_action_runs_if_still_allowed_else_nothing():
    rule = gx.rule(lambda s, a: bool(a[0] < 0.5), name="left")
    guardian = gx.Guardian(PLANE, rule)
    context = gx.Context(previous_action=np.array([0.2, 0.0], np.float32))
    verdict = guardian.certify(None, np.array([np.nan, 0.0]), context=context)
    assert verdict.status == "fallback"
    assert verdict.action == pytest.approx([0.2, 0.0])
    with pytest.raises(gx.StopEpisode, match="no fallback is declared or allowed"):
        guardian.certify(
            None, np.array([np.nan, 0.0]), context=gx.Context(previous_action=np.array([0.9, 0.0]))
        )
    with pytest.raises(gx.StopEpisode):
        guardian.certify(None, np.array([np.nan, 0.0]))
    assert guardian.audit.tally.stopped == 2


def test_a_fallback_that_a_rule_forbids_is_not_used():
    broken = gx.rule(raises, name="broken")
    wall = gx.bounds_rule(lambda s: ([-1, -1], [0, 1]), name="wall")
    guardian = gx.Guardian(PLANE, [broken, wall], fallback=np.array([0.5, 0.0]))
    with pytest.raises(gx.StopEpisode, match="sensor lost"):
        guardian.certify(None, np.zeros(2))
    allowed = gx.Guardian(PLANE, [broken, wall], fallback=lambda state: np.array([state, 0.0]))
    assert allowed.certify(-0.25, np.zeros(2)).action == pytest.approx([-0.25, 0.0])


def test_an_or_that_is_broken_whatever_the_silent_rule_says_forbids_the_fallback():
    rules = (gx.rule(raises) & gx.rule(lambda s, a: False)) | gx.rule(lambda s, a: bool(a[0] < 0))
    with pytest.raises(gx.StopEpisode):
        gx.Guardian(PLANE, rules, fallback=np.array([0.5, 0.5])).certify(0, np.array([0.7, 0.7]))


NO_ACTIONS = [
    (PLANE, "stop", "numbers"),
    (PLANE, [[0.0], [0.0, 1.0]], "numbers"),
    (PLANE, gx.rule(raises), "numbers"),
    (PLANE, np.zeros(3), "shape"),
    (PLANE, 0.5, "shape"),
    (PLANE, np.array([np.nan, 0.0]), "not finite"),
    (PLANE, np.array([5.0, 0.0]), "outside"),
    (gym.spaces.Discrete(3), 3, "outside"),
    (gym.spaces.Discrete(3), 1.0, "whole numbers"),
    (gym.spaces.Discrete(3), [1], "shape"),
    (gym.spaces.MultiDiscrete([2, 3]), [0.7, 1], "whole numbers"),
    (gym.spaces.MultiDiscrete([2, 3]), [1, 3], "outside"),
    (gym.spaces.MultiBinary(2), [1, 2], "outside"),
]


@pytest.mark.parametrize(("space", "fallback", "said"), NO_ACTIONS)
def test_a_fallback_that_is_no_action_is_refused_or_named(space, fallback, said):
    with pytest.raises(gx.GxError, match=f"the fallback is .*{said}.*; give such an action"):
        gx.Guardian(space, gx.rule(raises), fallback=fallback)
    guardian = gx.Guardian(space, gx.rule(raises), fallback=lambda state: fallback)
    with pytest.raises(gx.StopEpisode, match=f"sensor lost; the fallback returned .*{said}"):
        guardian.certify(None, guardian.blank_actions(1)[0])
    watched = gx.Guardian(space, gx.rule(raises), fallback=lambda state: fallback, mode="monitor")
    assert "the fallback returned" in watched.certify(None, guardian.blank_actions(1)[0]).reason


@pytest.mark.parametrize(
    ("space", "fallback"),
    [
        (PLANE, [0, 1]),
        (PLANE, torch.zeros(2)),
        (gym.spaces.Discrete(3), 2),
        (gym.spaces.Discrete(3), np.array(2)),
        (gym.spaces.Discrete(3, start=5), np.int32(7)),
        (gym.spaces.MultiDiscrete([2, 3]), [1, 2]),
        (gym.spaces.MultiBinary(2), [True, False]),
    ],
)
def test_fallbacks_of_other_types_are_cast(space, fallback):
    guardian = gx.Guardian(space, gx.rule(raises), fallback=fallback)
    verdict = guardian.certify(None, guardian.blank_actions(1)[0])
    assert verdict.status == "fallback"
    assert space.contains(verdict.action)


@pytest.mark.parametrize("fallback", [lambda s: 1 / 0, lambda s: None])
def test_a_fallback_function_that_gives_nothing_stops_the_episode(fallback):
    guardian = gx.Guardian(PLANE, gx.rule(raises), fallback=fallback)
    with pytest.raises(gx.StopEpisode, match="sensor lost; the fallback r"):
        guardian.certify(None, np.zeros(2))


def test_a_rule_that_fails_is_said_and_counted_once():
    guardian = gx.Guardian(gym.spaces.Discrete(4), gx.mask_rule(lambda s: [True, False, True], name="m"))
    with pytest.raises(gx.StopEpisode) as stop:
        guardian.certify(None, 1)
    assert str(stop.value) == (
        "rule 'm' returned a mask of shape (3,), expected (4,) for each state; no fallback is declared or allowed"
    )
    assert guardian.audit.tally.stopped == 1


def test_a_missed_deadline_means_the_fallback_and_a_late_rule_blocks_nothing_for_long():
    def slow(state, action):
        time.sleep(state)
        return True

    guardian = gx.Guardian(PLANE, gx.rule(slow), fallback=SAFE, deadline=0.2)
    assert guardian.certify(0.0, np.zeros(2)).status == "allowed"
    late = guardian.certify(1.0, np.zeros(2))
    assert late.status == "fallback"
    assert "did not answer within 0.2 s" in late.reason
    assert "still busy" in guardian.certify(0.0, np.zeros(2)).reason
    time.sleep(1.3)
    assert guardian.certify(0.0, np.zeros(2)).status == "allowed"
    with pytest.raises(gx.GxError, match="seconds"):
        gx.Guardian(PLANE, gx.rule(slow), deadline=0)


def test_the_deadline_bounds_a_slow_fallback_too():
    """A fallback that never comes back: the previous action runs if it is allowed, else the episode stops."""
    forever = threading.Event()

    def hangs(state):
        forever.wait()

    rule = gx.rule(lambda s, a: bool(a[0] < 0.5), name="left")
    context = gx.Context(previous_action=np.array([0.2, 0.0], np.float32))
    try:
        guardian = gx.Guardian(PLANE, rule, fallback=hangs, deadline=0.4)
        verdict = guardian.certify(None, np.array([np.nan, 0.0]), context=context)
        assert verdict.action == pytest.approx([0.2, 0.0])
        assert "the fallback did not answer within" in verdict.reason
        with pytest.raises(gx.StopEpisode, match="still busy"):
            guardian.certify(None, np.array([np.nan, 0.0]))
        both = gx.Guardian(PLANE, gx.rule(lambda s, a: forever.wait()), fallback=hangs, deadline=0.2)
        with pytest.raises(gx.StopEpisode, match=r"the rules did not answer .* the fallback did not answer"):
            both.certify(None, np.zeros(2), context=context)
    finally:
        forever.set()


def test_a_slow_rule_leaves_time_for_the_fallback_function():
    forever = threading.Event()
    try:
        rule = gx.rule(lambda s, a: forever.wait())
        guardian = gx.Guardian(PLANE, rule, fallback=lambda s: SAFE, deadline=0.4)
        assert np.array_equal(guardian.certify(None, np.zeros(2)).action, SAFE)
    finally:
        forever.set()


@pytest.mark.parametrize("function", [False, True])
@pytest.mark.parametrize("late_first", [False, True])
def test_a_rule_that_answers_checks_the_fallback_while_another_is_late(function, late_first):
    def limited(state):
        return [-0.2, -1.0], [0.2, 1.0]

    def server(state):
        time.sleep(float(state[0]))
        return [-1.0, -1.0], [1.0, 1.0]

    rules = [gx.bounds_rule(limited, name="limit"), gx.bounds_rule(server, name="server")]
    rules = rules[::-1] if late_first else rules
    for fallback, allowed in (([0.1, 0.9], True), ([0.9, 0.1], False)):
        action = np.array(fallback, np.float32)
        given = (lambda state, action=action: action) if function else action
        guardian = gx.Guardian(PLANE, rules, fallback=given, deadline=0.4)
        assert guardian.certify(np.zeros(1), SAFE).status == "allowed"
        if not allowed:
            with pytest.raises(gx.StopEpisode, match="did not answer"):
                guardian.certify(np.ones(1), SAFE)
            continue
        verdict = guardian.certify(np.ones(1), SAFE)
        assert np.array_equal(verdict.action, action)
        assert verdict.executed_margin == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("space", "fallback", "good"),
    [
        (gym.spaces.Box(-1, 1, (1,), np.float32), [-1.0], [0.95]),
        (gym.spaces.Discrete(5, start=2), 2, 6),
        (gym.spaces.MultiDiscrete([3, 3]), [0, 0], [2, 2]),
    ],
)
def test_a_rule_that_would_search_long_is_asked_about_the_fallback_alone(space, fallback, good):
    asked, hangs = [], threading.Event()

    def slow(state, action):
        if hangs.is_set():
            asked.append(np.array(action))
            time.sleep(0.02)
        return bool(np.all(action == np.asarray(good, space.dtype)))

    late = gx.rule(lambda state, action: (hangs.is_set() and time.sleep(2)) or True, name="late")
    rules, action = [late, gx.rule(slow, name="one only")], np.asarray(fallback, space.dtype)
    guardian = gx.Guardian(space, rules, fallback=action, deadline=0.6)
    assert guardian.certify(None, np.asarray(good, space.dtype)).status == "allowed"
    hangs.set()
    with pytest.raises(gx.StopEpisode, match="did not answer"):
        guardian.certify(None, np.asarray(good, space.dtype))
    assert np.array_equal(asked[-1], action)


def test_a_type_finer_than_that_of_rules_is_refused():
    fine = gym.spaces.Box(-1, 1, (1,), np.longdouble)
    with pytest.raises(gx.GxError, match="finer than float64"):
        gx.Guardian(fine, gx.bounds_rule(lambda s: ([-0.1], [0.1])))


def test_threads_wait_for_each_other_instead_of_falling_back():
    guardian = gx.Guardian(PLANE, gx.rule(lambda s, a: True), deadline=60.0)

    def run():
        for _ in range(100):
            assert guardian.certify(None, np.zeros(2)).status == "allowed"

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert guardian.audit.tally.allowed == 300


def test_a_solver_that_does_not_converge_is_a_counted_failure(monkeypatch, without_numba):
    import rlpd_gx.safe_sets.last_resort as last_resort
    import rlpd_gx.safe_sets.solver as solver

    monkeypatch.setattr(solver, "MAX_STEPS", -100)  # the real solvers, allowed no step
    monkeypatch.setattr(last_resort, "MAX_CUTS", 0)
    guardian = gx.Guardian(PLANE, gx.l1_rule(lambda s: ([1.0, 1.0], 1.0)), fallback=SAFE)
    verdict = guardian.certify(None, np.array([1.0, 1.0]))
    assert verdict.status == "fallback"
    assert "did not converge" in verdict.reason


def test_one_bad_state_does_not_cost_the_others():
    def weights(states):
        if np.isnan(states).any():
            raise ValueError("lost track")
        return np.stack([states, states], axis=-1), np.ones(len(states))

    guardian = gx.Guardian(PLANE, gx.l1_rule(weights, batched=True), fallback=SAFE)
    batch = guardian.certify_batch(np.array([1.0, np.nan, 2.0]), np.full((3, 2), 0.9))
    assert [str(s) for s in batch.status] == ["projected", "fallback", "projected"]
    assert batch.action == pytest.approx(np.array([[0.5, 0.5], SAFE, [0.25, 0.25]]), abs=1e-6)


def test_a_batched_rule_that_answers_for_too_many_states_is_a_failure():
    guardian = gx.Guardian(THREE, gx.mask_rule(lambda s: np.ones((5, 3), bool), batched=True), fallback=2)
    batch = guardian.certify_batch(np.zeros(2), np.array([0, 1]))
    assert [str(s) for s in batch.status] == ["fallback", "fallback"]


# --- rules that share or change memory -------------------------------------------------------------------------


def test_rules_that_share_a_buffer_are_heard_one_by_one():
    buffer = np.zeros(3, bool)

    def first(state):
        buffer[:] = [False, True, True]
        return buffer

    def second(state):
        buffer[:] = [True, True, False]
        return buffer

    guardian = gx.Guardian(THREE, [gx.mask_rule(first), gx.mask_rule(second)])
    assert [int(guardian.certify(None, a).action) for a in range(3)] == [1, 1, 1]
    weights = np.zeros(2)

    def reused(state):
        weights[:] = state
        return weights, 1.0

    plane = gx.Guardian(PLANE, gx.l1_rule(reused))
    with pytest.warns(UserWarning, match="not batched"):
        batch = plane.certify_batch(np.array([10.0, 0.1]), np.ones((2, 2)))
    assert batch.action[0] == pytest.approx([0.05, 0.05], abs=1e-6)


def test_a_rule_cannot_change_the_action_or_the_state_for_the_others():
    def pushes(state, action):
        action += 0.5
        return True

    guardian = gx.Guardian(
        PLANE, [gx.rule(lambda s, a: bool((a <= 0.5).all())), gx.rule(pushes)], fallback=SAFE
    )
    assert guardian.certify(None, np.array([0.2, 0.2])).status == "fallback"

    def erases(state):
        state *= 0
        return np.ones(3, bool)

    state = np.array([5.0])
    limit = gx.mask_rule(lambda s: np.array([s[0] < 1, True, True]), name="limit")
    assert gx.Guardian(THREE, [gx.mask_rule(erases), limit], fallback=2).certify(state, 0).action != 0


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(
    "made", [lambda: {"closed": [0]}, lambda: torch.tensor([5.0])], ids=["list", "tensor"]
)
def test_lists_and_tensors_are_each_rule_s_own(made, batched):
    """They cannot be write-protected: what a rule does to them is not seen by the next one, nor in the next step."""

    def empties(state):
        if isinstance(state, dict):
            state["closed"].clear()
        else:
            state.mul_(0)
        return np.ones((1, 3) if batched else 3, bool)

    def closed(state):
        there = bool(state["closed"]) if isinstance(state, dict) else float(state.ravel()[0]) > 1
        return np.array([[not there, True, True]] if batched else [not there, True, True])

    rules = [gx.mask_rule(f, name=f.__name__, batched=batched) for f in (empties, closed)]
    for together in (rules, [*rules, gx.rule(lambda s, a: True)]):  # verdicts that are remembered, and others
        guardian, state = gx.Guardian(THREE, together), made()
        for _ in range(2):
            assert guardian.certify(state, 0).action != 0


def test_a_verdict_cannot_be_changed_afterwards():
    guardian = gx.Guardian(THREE, gx.mask_rule(lambda s: np.array([False, True, True])))
    verdict = guardian.certify(None, 0)
    with pytest.raises(TypeError):
        verdict.margins["x"] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        verdict.safe_set.allowed[:] = True
    with pytest.raises(AttributeError):
        verdict.action = 0


def test_numbers_that_mean_nothing_do_not_choose_an_action():
    guardian = gx.Guardian(THREE, gx.mask_rule(lambda s: np.array([False, True, True])))
    assert guardian.certify(None, 0, preference=[np.nan] * 3).action == 1
    assert guardian.certify(None, 1, preference=[np.nan] * 3).status == "allowed"
    with pytest.raises(gx.GxError, match="NaN or infinite"):
        gx.Guardian(THREE, gx.mask_rule(lambda s: np.ones(3, bool)), embedding=[[0.0], [np.nan], [1.0]])


def test_a_threshold_of_minus_infinity_allows_nothing():
    never = gx.l1_rule(lambda s: ([1, 1], -np.inf), name="never")
    assert gx.Guardian(PLANE, never).certify(None, np.array([0.7, 0.7])).inevitable
    corner = gx.bounds_rule(lambda s: ([0, 0], [0.1, 0.1]), name="corner")
    verdict = gx.Guardian(PLANE, never | corner).certify(None, np.array([0.7, 0.7]))
    assert (verdict.action <= 0.1).all()


def test_a_flat_mask_that_could_mean_two_things_is_refused():
    space = gym.spaces.MultiDiscrete([2, 2])
    with pytest.raises(gx.StopEpisode, match="one mask per component or all 4 joint actions"):
        gx.Guardian(space, gx.mask_rule(lambda s: [True, False, False, True])).certify(None, np.array([0, 1]))
    by_part = gx.Guardian(space, gx.mask_rule(lambda s: ([True, False], [False, True])))
    assert by_part.certify(None, np.array([1, 0])).action.tolist() == [0, 1]


@settings(max_examples=60)
@given(st.data())
def test_no_forbidden_action_ever_passes_whatever_rules_and_proposals_do(data):
    """Random rules - some fail on some states - and random proposals, judged again by hand from outside."""
    kinds = data.draw(
        st.lists(st.sampled_from(["l1", "bounds", "predicate", "flaky", "nan"]), min_size=1, max_size=3)
    )
    limit = data.draw(st.floats(0.05, 1.5))
    cut = data.draw(st.floats(-0.8, 0.8))

    def allowed(kind, action):
        x = np.asarray(action, dtype=np.float64)
        return {
            "l1": np.abs(x).sum() <= limit,
            "bounds": bool((x <= cut + 0.1).all()),
            "predicate": bool(np.sin(5 * x[0]) <= cut + 0.9),
        }.get(kind, True)

    def flaky(state, action):
        if state > 0.5:
            raise OSError("no signal")
        return True

    make = {
        "l1": gx.l1_rule(lambda s: ([1.0, 1.0], limit)),
        "bounds": gx.bounds_rule(lambda s: ([-1.0] * 2, [cut + 0.1] * 2)),
        "predicate": gx.rule(lambda s, a: bool(np.sin(5 * float(a[0])) <= cut + 0.9)),
        "flaky": gx.rule(flaky),
        "nan": gx.margin_rule(lambda s, a: np.nan if s > 0.8 else 1.0),
    }
    fallback = np.array([-0.02, -0.02], np.float32)
    if not all(allowed(k, fallback) for k in kinds):
        fallback = None
    guardian = gx.Guardian(PLANE, [make[k] for k in kinds], fallback=fallback)
    for _ in range(4):
        proposed = np.array(data.draw(st.tuples(st.floats(-3, 3), st.floats(-3, 3))))
        if data.draw(st.integers(0, 9)) == 0:
            proposed[0] = np.nan
        try:
            verdict = guardian.certify(data.draw(st.floats(0, 1)), proposed)
        except gx.StopEpisode:
            continue
        assert PLANE.contains(verdict.action)
        if not verdict.inevitable:
            for kind in kinds:
                assert allowed(kind, verdict.action), (kind, verdict)


@pytest.mark.parametrize("given", [{"state": lambda observation: 0}, {"unsafe_event": lambda reward: False}])
@pytest.mark.parametrize("vector", [False, True])
def test_a_function_that_cannot_be_called_is_refused_before_any_step(given, vector):
    name = next(iter(given))
    rule = gx.mask_rule(lambda state: [True, True], name="all")
    env = gym.make_vec("CartPole-v1", num_envs=2) if vector else gym.make("CartPole-v1")
    with pytest.raises(gx.GxError, match=rf"{name} is called with \(.*\), but the one given takes \("):
        (gx.GuardedVectorEnv if vector else gx.GuardedEnv)(env, rule, **given)
    with pytest.raises(gx.GxError, match=rf"{name} must be a function of \("):
        (gx.GuardedVectorEnv if vector else gx.GuardedEnv)(env, rule, **{name: 3})
