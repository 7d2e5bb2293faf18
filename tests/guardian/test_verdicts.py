"""Verdicts: what the Guardian answers when all is well."""

import gymnasium as gym
import numpy as np
import pytest
from bench.timing import interleaved, ratio
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import rlpd_gx as gx

PLANE = gym.spaces.Box(-1, 1, (2,), np.float32)
JOYSTICK = np.array([[0, 0], [0, 1], [1, 0], [-1, 0], [0, -1]], dtype=float)  # noop, up, right, left, down


def test_an_allowed_action_passes_untouched():
    guardian = gx.Guardian(PLANE, gx.l1_rule(lambda s: ([1.0, 1.0], 1.0), name="power"))
    proposed = np.array([0.3, -0.4], np.float32)
    verdict = guardian.certify(None, proposed)
    assert verdict.status == "allowed"
    assert not verdict.corrected
    assert np.array_equal(verdict.action, proposed)
    assert verdict.margins["power"] == pytest.approx(0.3)
    assert verdict.distance == 0


def test_a_forbidden_action_moves_to_the_nearest_allowed_one():
    guardian = gx.Guardian(PLANE, gx.l1_rule(lambda s: ([1.0, 1.0], 1.0), name="power"))
    verdict = guardian.certify(None, np.array([1.0, 0.5], np.float32))
    assert verdict.status == "projected"
    assert verdict.action == pytest.approx([0.75, 0.25], abs=1e-6)
    assert verdict.action.dtype == np.float32
    assert verdict.distance == pytest.approx(np.hypot(0.25, 0.25), abs=1e-6)
    assert verdict.margins["power"] == pytest.approx(-0.5)
    assert verdict.binding == ("power",)
    assert verdict.exact
    assert verdict.safe_set.contains(verdict.action)
    assert "power by 0.5" in str(verdict)
    assert "not enforced" not in str(verdict)


def test_a_verdict_of_monitor_mode_says_that_its_suggestion_did_not_run():
    rule = gx.l1_rule(lambda s: ([1.0, 1.0], 1.0), name="power")
    guardian = gx.Guardian(PLANE, rule, mode="monitor")
    said = str(guardian.certify(None, np.array([1.0, 0.5], np.float32)))
    assert said.endswith("; breaks power by 0.5; not enforced")
    assert str(guardian.certify(None, np.zeros(2, np.float32))) == "allowed [0. 0.]"


@pytest.mark.parametrize("mode", ["enforce", "monitor"])
@pytest.mark.parametrize("quick", [True, False])
def test_a_verdict_does_not_change_with_the_array_that_was_proposed(mode, quick):
    rules = [gx.l1_rule(lambda s: ([1.0, 1.0], 1.0), name="power")]
    if not quick:  # a rule that the compiled kernel does not judge
        rules.append(gx.rule(lambda s, a: True, name="anything"))
    proposed = np.array([1.0, 0.5], np.float32)
    verdict = gx.Guardian(PLANE, rules, mode=mode).certify(None, proposed)
    executed = np.array(verdict.action)
    proposed[:] = 9
    assert verdict.proposed.tolist() == [1.0, 0.5]
    np.testing.assert_array_equal(verdict.action, executed)
    for action in (verdict.proposed, verdict.action):
        with pytest.raises(ValueError, match="read-only"):
            action[0] = 0


def test_rules_name_themselves_and_the_action_space_can_bind():
    @gx.bounds_rule
    def slow(state):
        return [-2, -2], [2, 0.5]

    @gx.ellipsoid_rule(name="ball")
    def round_one(state):
        return [1.0, 1.0], 1.0

    verdict = gx.Guardian(PLANE, [slow, round_one]).certify(None, np.array([3.0, 0.6]))
    assert set(verdict.margins) == {"slow", "ball"}
    assert verdict.binding == ("slow", "ball", "action space")
    # Nearest in the ball is the proposal scaled to length 1, which the other bounds allow.
    assert verdict.action == pytest.approx(np.array([3.0, 0.6]) / np.hypot(3.0, 0.6), abs=1e-6)
    assert verdict.margins["slow"] == pytest.approx(-1.0)


def test_either_rule_is_enough_for_an_or():
    left = gx.bounds_rule(lambda s: ([-1, -1], [-0.5, 1]), name="left")
    right = gx.bounds_rule(lambda s: ([0.4, -1], [1, 1]), name="right")
    guardian = gx.Guardian(PLANE, left | right)
    assert guardian.certify(None, np.array([-0.2, 0.0])).action == pytest.approx([-0.5, 0.0], abs=1e-6)
    assert guardian.certify(None, np.array([0.1, 0.0])).action == pytest.approx([0.4, 0.0], abs=1e-6)
    assert guardian.certify(None, np.array([0.7, 0.0])).status == "allowed"
    both = gx.Guardian(PLANE, (left | right) & gx.bounds_rule(lambda s: ([-1, 0], [1, 0.1]), name="flat"))
    assert both.certify(None, np.array([0.1, 0.5])).action == pytest.approx([0.4, 0.1], abs=1e-6)


def test_shifting_a_rule_moves_its_threshold():
    rule = gx.l1_rule(lambda s: ([1.0, 1.0], 1.0), name="power")
    tight = gx.Guardian(PLANE, rule.shifted(0.25)).certify(None, np.array([1.0, 0.0]))
    assert tight.action == pytest.approx([0.75, 0.0], abs=1e-6)
    with pytest.raises(gx.GxError, match="no threshold"):
        gx.mask_rule(lambda s: [True]).shifted(0.1)


def test_a_bare_predicate_is_searched_and_said_not_to_be_exact():
    guardian = gx.Guardian(PLANE, gx.rule(lambda s, a: bool(a[0] <= 0.2), name="left half"))
    verdict = guardian.certify(None, np.array([0.9, 0.5], np.float32))
    assert verdict.status == "projected"
    assert not verdict.exact
    assert verdict.action[0] <= 0.2
    assert verdict.safe_set is None
    # The segment to the middle of the space meets the boundary at x = 0.2: a quarter of the way is left.
    assert verdict.action == pytest.approx([0.2, 0.5 * 0.2 / 0.9], abs=1e-5)


def test_a_predicate_that_accepts_the_structured_projection_is_exact():
    rules = gx.l1_rule(lambda s: ([1.0, 1.0], 1.0)) & gx.rule(lambda s, a: bool(a[1] >= 0))
    verdict = gx.Guardian(PLANE, rules).certify(None, np.array([1.0, 0.5]))
    assert verdict.exact
    assert verdict.action == pytest.approx([0.75, 0.25], abs=1e-6)


def test_a_margin_rule_reports_its_margin():
    guardian = gx.Guardian(PLANE, gx.margin_rule(lambda s, a: s - float(np.sum(a**2)), name="ring"))
    verdict = guardian.certify(0.25, np.array([1.0, 0.0]))
    assert verdict.margins["ring"] == pytest.approx(-0.75)
    assert np.sum(verdict.action**2) <= 0.25


def test_an_empty_set_yields_the_least_bad_action_and_says_so():
    up = gx.bounds_rule(lambda s: ([-1, 0.4], [1, 1]), name="up")
    down = gx.bounds_rule(lambda s: ([-1, -1], [1, -0.2]), name="down")
    verdict = gx.Guardian(PLANE, [up, down]).certify(None, np.array([0.7, 0.9]))
    assert verdict.status == "inevitable"
    assert verdict.inevitable
    # both rules broken by 0.3: no point does better
    assert verdict.action == pytest.approx([0.7, 0.1], abs=1e-5)


def test_discrete_actions_move_under_the_embedding():
    space = gym.spaces.Discrete(5)
    forbid_up = gx.mask_rule(lambda s: np.array([False, False, True, True, True]), name="ceiling")
    guardian = gx.Guardian(space, forbid_up, embedding=JOYSTICK)
    verdict = guardian.certify(None, 1)
    assert verdict.action == 2  # right and left are equally near: the lowest id
    assert guardian.certify(None, 1, preference=[0, 0, 0.1, 0.9, 0]).action == 3
    assert guardian.certify(None, 4).status == "allowed"


def test_ties_go_to_the_larger_margin_first():
    rule = gx.margin_rule(lambda s, a: [-1.0, 0.2, 0.9, 0.5][a])
    guardian = gx.Guardian(gym.spaces.Discrete(4), rule)
    assert guardian.certify(None, 0, preference=[0, 1, 0, 0]).action == 2


def test_discrete_least_bad_is_the_largest_margin():
    rule = gx.margin_rule(lambda s, a: [-3.0, -1.0, -2.0][a], name="danger")
    verdict = gx.Guardian(gym.spaces.Discrete(3), rule).certify(None, 0)
    assert verdict.inevitable
    assert verdict.action == 1


def test_discrete_spaces_that_do_not_start_at_zero():
    space = gym.spaces.Discrete(3, start=-1)
    guardian = gx.Guardian(space, gx.rule(lambda s, a: bool(a != 0)))
    assert guardian.certify(None, 0).action == -1
    assert guardian.certify(None, 1).status == "allowed"
    masked = gx.Guardian(space, gx.mask_rule(lambda s: np.array([False, True, True])))
    assert masked.certify(None, -1).action == 0


def test_multidiscrete_masks_by_component_and_jointly():
    space = gym.spaces.MultiDiscrete([3, 2])
    by_part = gx.Guardian(space, gx.mask_rule(lambda s: [True, False, True, True, False]))
    verdict = by_part.certify(None, np.array([1, 1]))
    assert verdict.action.tolist() == [0, 0]
    assert verdict.distance == pytest.approx(np.sqrt(2))
    assert by_part.certify(None, np.array([1, 0])).action.tolist() == [0, 0]
    joint = np.ones((3, 2), bool)
    joint[1, 1] = False
    jointly = gx.Guardian(space, gx.mask_rule(lambda s: joint))
    assert jointly.certify(None, np.array([1, 1])).distance == pytest.approx(1.0)  # one component is enough
    assert jointly.certify(None, np.array([1, 0])).status == "allowed"
    predicate = gx.Guardian(space, gx.rule(lambda s, a: bool(a.sum() != 2)))
    assert predicate.certify(None, np.array([2, 0])).action.sum() != 2


def test_large_multidiscrete_spaces_take_masks_by_component_only():
    space = gym.spaces.MultiDiscrete([10] * 5)
    mask = np.ones(50, bool)
    mask[3] = mask[19] = False
    guardian = gx.Guardian(space, gx.mask_rule(lambda s: mask))
    verdict = guardian.certify(None, np.array([3, 9, 4, 4, 4]))
    assert verdict.status == "projected"
    assert verdict.action.tolist() == [0, 0, 4, 4, 4]
    with pytest.raises(gx.GxError, match="4096 joint actions"):
        gx.Guardian(space, gx.rule(lambda s, a: True))


@pytest.mark.parametrize(
    ("space", "rule", "said"),
    [
        (
            gym.spaces.Text(3),
            gx.rule(lambda s, a: True),
            "guards Discrete, MultiDiscrete, MultiBinary and Box",
        ),
        (gym.spaces.Discrete(3), gx.bounds_rule(lambda s: (0, 1)), "continuous actions"),
        (PLANE, gx.mask_rule(lambda s: [True]), "discrete actions"),
        (PLANE, [], "at least one rule"),
        (PLANE, [print], "print is not a rule but a function; decorate it, for example with @gx.rule"),
        (PLANE, 3, "3 is not a rule"),
        (gym.spaces.Box(0, 9, (2,), np.int64), gx.bounds_rule(lambda s: (0, 1)), "whole-number"),
    ],
)
def test_what_cannot_be_guarded_is_refused_at_construction(space, rule, said):
    with pytest.raises(gx.GxError, match=said):
        gx.Guardian(space, rule)


def test_a_guardian_says_what_it_is():
    guardian = gx.Guardian(
        gym.spaces.Discrete(3), gx.mask_rule(lambda s: [True] * 3, name="m"), mode="monitor"
    )
    assert repr(guardian) == "<Guardian of Discrete(3) under m (monitor)>"


def test_context_reaches_the_rules_that_declare_it():
    rate = gx.bounds_rule(
        lambda s, previous_action: (previous_action - 0.1, previous_action + 0.1),
        needs=("previous_action",),
        name="rate",
    )
    curfew = gx.bounds_rule(
        lambda s, time, parameters: ([-1, -1], [1, 1 if time < parameters else 0]),
        needs=("time", "parameters"),
        name="curfew",
    )
    guardian = gx.Guardian(PLANE, [rate, curfew])
    context = gx.Context(previous_action=np.array([0.5, 0.0]), time=3, parameters=10)
    assert guardian.certify(None, np.array([1.0, 1.0]), context=context).action == pytest.approx(
        [0.6, 0.1], abs=1e-6
    )
    late = {"previous_action": np.array([0.5, 0.0]), "time": 11, "parameters": 10}
    assert guardian.certify(None, np.array([1.0, 1.0]), context=late).action == pytest.approx(
        [0.6, 0.0], abs=1e-6
    )


def test_dict_states_in_a_batch():
    rule = gx.positive_sum_rule(lambda s: (s["w"], s["c"]), batched=True)
    guardian = gx.Guardian(PLANE, rule)
    states = {"w": np.array([[1.0, 1.0], [0.0, 1.0]]), "c": np.array([0.5, 0.5])}
    batch = guardian.certify_batch(states, np.array([[1.0, 0.0], [1.0, 0.0]]))
    assert batch.action == pytest.approx(np.array([[0.5, 0.0], [1.0, 0.0]]), abs=1e-6)
    assert [str(s) for s in batch.status] == ["projected", "allowed"]
    single = guardian.certify({"w": np.array([1.0, 1.0]), "c": np.array(0.5)}, np.array([1.0, 0.0]))
    assert single == batch[0]


@given(
    hnp.arrays(np.float64, (6, 2), elements=st.floats(-2, 2)),
    hnp.arrays(np.float64, 6, elements=st.floats(0, 2)),
)
def test_a_batch_of_verdicts_is_the_verdicts_one_by_one(proposed, thresholds):
    rules = gx.l1_rule(lambda s: (np.ones((len(s), 2)), s), batched=True, name="one") & gx.bounds_rule(
        lambda s: (np.full((len(s), 2), -0.7), np.full((len(s), 2), 0.7)), batched=True, name="two"
    )
    guardian = gx.Guardian(PLANE, rules)
    batch = guardian.certify_batch(thresholds, proposed)
    for i in range(6):
        alone = guardian.certify(thresholds[i], proposed[i])
        assert alone.status == batch[i].status
        np.testing.assert_allclose(alone.action, batch[i].action, atol=1e-6)
        assert np.abs(batch[i].action.astype(float)).sum() <= thresholds[i] + 1e-7  # counted from outside


def test_rules_that_are_not_batched_still_work_and_say_so_once():
    guardian = gx.Guardian(PLANE, gx.l1_rule(lambda s: ([1.0, 1.0], s), name="slow one"))
    with pytest.warns(UserWarning, match="'slow one' is not batched"):
        batch = guardian.certify_batch(np.array([0.5, 1.0]), np.array([[1.0, 0.0], [1.0, 0.0]]))
    assert batch.action[:, 0] == pytest.approx([0.5, 1.0], abs=1e-6)
    # warnings are errors here
    guardian.certify_batch(np.array([0.5, 1.0]), np.array([[1.0, 0.0], [1.0, 0.0]]))


def test_halfspaces_may_differ_in_number_from_state_to_state():
    rule = gx.halfspace_rule(lambda s: (np.eye(2)[:s], np.zeros(s)), name="walls")
    guardian = gx.Guardian(PLANE, rule)
    with pytest.warns(UserWarning, match="not batched"):
        batch = guardian.certify_batch([0, 1, 2], np.full((3, 2), 0.5))
    assert batch.action == pytest.approx(np.array([[0.5, 0.5], [0, 0.5], [0, 0]]), abs=1e-6)


def test_declared_rows_give_codes_of_one_size():
    rule = gx.halfspace_rule(lambda s: (np.eye(2)[: int(s)], np.zeros(int(s))), name="walls", max_rows=2)
    guardian = gx.Guardian(PLANE, rule, fallback=np.zeros(2))
    sizes = {guardian.certify(s, np.full(2, 0.5)).safe_set.encode().shape for s in (0, 1, 2)}
    assert len(sizes) == 1
    assert guardian.certify(1, np.full(2, 0.5)).action == pytest.approx([0, 0.5], abs=1e-6)
    few = gx.Guardian(
        PLANE, gx.halfspace_rule(lambda s: (np.eye(2), np.zeros(2)), max_rows=1), fallback=np.zeros(2)
    )
    assert "max_rows=1" in few.certify(None, np.full(2, 0.5)).reason


def test_safe_sets_of_a_batch_of_states_can_be_stored_and_read_back():
    guardian = gx.Guardian(PLANE, gx.l1_rule(lambda s: (np.ones((len(s), 2)), s), batched=True))
    sets = guardian.safe_sets(np.array([0.5, 1.0, 1.5]))
    code = sets.encode()
    assert code.shape[0] == 3
    again = gx.decode(code, sets.spec)
    assert again.project(np.ones((3, 2))) == pytest.approx(
        np.array([[0.25] * 2, [0.5] * 2, [0.75] * 2]), abs=1e-9
    )


def test_monitor_mode_lets_everything_through_and_reports():
    guardian = gx.Guardian(PLANE, gx.l1_rule(lambda s: ([1.0, 1.0], 1.0), name="power"), mode="monitor")
    verdict = guardian.certify(None, np.array([1.0, 1.0]))
    assert verdict.action.tolist() == [1.0, 1.0]
    assert verdict.suggestion == pytest.approx([0.5, 0.5], abs=1e-6)
    assert verdict.corrected
    assert guardian.audit.tally.projected == 1


def test_the_same_state_and_context_give_the_same_verdict():
    rule = gx.rule(lambda s, a: bool(np.sin(7 * a[0]) + a[1] < s))
    states, proposed = (
        np.random.default_rng(0).uniform(0.1, 2, 20),
        np.random.default_rng(1).normal(size=(20, 2)),
    )
    first = [
        gx.Guardian(PLANE, rule, fallback=np.zeros(2)).certify(s, a)
        for s, a in zip(states, proposed, strict=True)
    ]
    guardian = gx.Guardian(PLANE, rule, fallback=np.zeros(2))
    assert first == [guardian.certify(s, a) for s, a in zip(states, proposed, strict=True)]


# --- the margin of what is executed ----------------------------------------------------------------------------


def test_the_executed_margin_is_that_of_the_action_that_runs():
    rule = gx.margin_rule(lambda s, a: np.array([-1.0, 0.2, 0.9, 0.5])[a], batched=True)
    for mode, margin in (("enforce", 0.9), ("monitor", -1.0)):
        guardian = gx.Guardian(gym.spaces.Discrete(4), rule, mode=mode)
        verdict = guardian.certify(0.0, 0)
        assert (verdict.executed_margin, verdict.margin) == (margin, -1.0)
        assert verdict.enforced == (mode == "enforce")
        assert guardian.certify(0.0, 3).executed_margin == 0.5
        batch = guardian.certify_batch(np.zeros(2), np.array([0, 3]))
        assert batch.executed_margin.tolist() == [margin, 0.5]
    worst = gx.Guardian(gym.spaces.Discrete(2), gx.margin_rule(lambda s, a: [-3.0, -1.0][a]))
    assert worst.certify(None, 0).executed_margin == -1.0


@given(hnp.arrays(np.float32, 2, elements=st.floats(-3, 3, width=32)), st.floats(0.01, 3))
def test_a_projection_is_never_taken_for_a_forbidden_action(proposed, limit):
    rules = [gx.l1_rule(lambda s: ([1.0, 0.7], s)), gx.ellipsoid_rule(lambda s: ([0.3, 1.0], s))]
    verdict = gx.Guardian(PLANE, rules).certify(limit, proposed)
    assert verdict.executed_margin >= 0
    assert verdict.corrected or verdict.executed_margin == verdict.margin


def test_a_fallback_has_its_own_margin_and_rules_that_were_not_asked_hide_nothing():
    def broken(state, action):
        raise OSError("no signal")

    wall = gx.margin_rule(lambda s, a: 0.5 - float(a[0]), name="wall")
    for rules in ([gx.rule(broken), wall], [wall, gx.rule(broken)]):
        verdict = gx.Guardian(PLANE, rules, fallback=np.array([0.2, 0.0])).certify(None, np.array([0.9, 0.0]))
        assert verdict.status == "fallback"
        assert verdict.margin == pytest.approx(-0.4)  # the proposal's
        assert verdict.executed_margin == pytest.approx(0.3)
        watched = gx.Guardian(PLANE, rules, mode="monitor").certify(None, np.array([0.9, 0.0]))
        assert watched.executed_margin == pytest.approx(-0.4)
    unknown = gx.Guardian(PLANE, gx.rule(broken), fallback=np.zeros(2)).certify(None, np.zeros(2))
    assert np.isnan(unknown.executed_margin)


@pytest.mark.parametrize(
    ("space", "rule", "proposed"),
    [
        (PLANE, gx.bounds_rule(lambda s: ([-1, -1], [0.5, 1])), np.array([0.9, 0.0], np.float32)),
        (gym.spaces.Discrete(2), gx.mask_rule(lambda s: np.array([False, True])), 0),
        (gym.spaces.Discrete(2), gx.rule(lambda s, a: True), 0),
    ],
)
def test_monitor_mode_says_that_nothing_is_enforced(space, rule, proposed):
    for mode in ("enforce", "monitor"):
        verdict = gx.Guardian(space, rule, mode=mode).certify(None, proposed)
        assert verdict.enforced == (mode == "enforce")


def test_masks_of_wrong_lengths_that_join_to_known_bytes_are_refused():
    answers = {"fine": ([True, True], [False, True]), "odd": ([True, True, False], [True])}
    first = gx.mask_rule(lambda s: np.array(answers[s][0]), name="first")
    second = gx.mask_rule(lambda s: np.array(answers[s][1]), name="second")
    guardian = gx.Guardian(gym.spaces.Discrete(2), [first, second])
    assert guardian.certify("fine", 0).action == 1
    with pytest.raises(gx.StopEpisode, match="expected"):
        guardian.certify("odd", 0)
    assert guardian.audit.tally.stopped == 1


def test_a_known_verdict_is_much_faster_than_a_judged_one():
    """A ratio of interleaved runs, far below what is measured (bench/guardian.py), so that noise does not decide."""
    rule = gx.mask_rule(lambda s: np.array([False, True]), name="right")
    guardian = gx.Guardian(gym.spaces.Discrete(2), rule)
    state = np.zeros(4)
    calls = {
        "known": lambda: [guardian.certify(state, 0) for _ in range(50)],
        "judged": lambda: [guardian.certify_batch(state[None], np.array([0])) for _ in range(50)],
    }
    seconds = interleaved(calls, rounds=7)
    assert ratio(seconds["judged"], seconds["known"]) > 10


def test_a_subclass_may_change_certify_and_still_uses_known_verdicts():
    class Loud(gx.Guardian):
        asked = 0

        def certify(self, state, proposed, **options):
            self.asked += 1
            return super().certify(state, proposed, **options)

    guardian = Loud(gym.spaces.Discrete(2), gx.mask_rule(lambda s: np.array([False, True]), name="right"))
    assert guardian.certify(None, 0) is guardian.certify(None, 0)
    assert guardian.asked == 2
    assert guardian.audit.tally.proposals == 2
