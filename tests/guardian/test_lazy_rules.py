"""Lazy rules: asked about the proposal first, then from the nearest action on, and no further than needed."""

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import rlpd_gx as gx

N = 6
SPACE = gym.spaces.Discrete(N)
PLACES = np.array([[0, 0], [0, 1], [1, 0], [-1, 0], [0, -1], [1, 1]], dtype=float)
tables = hnp.arrays(np.float64, (N,), elements=st.sampled_from([-3.0, -1.0, -0.5, 0.0, 1.0, 2.0]))
masks = hnp.arrays(bool, (N,))
actions = st.integers(0, N - 1)


class Asked:
    """A margin rule that remembers what it was asked."""

    def __init__(self, fail_at=None):
        self.actions, self.fail_at = [], fail_at

    def __call__(self, state, action):
        self.actions.append(int(action))
        if action == self.fail_at:
            raise ValueError("the emulator is gone")
        return state["margin"][action]


def cheap(state):
    return state["mask"]


@given(
    tables,
    masks,
    actions,
    st.none() | hnp.arrays(np.float64, (N,), elements=st.sampled_from([0.0, 1.0, np.nan])),
)
def test_the_choice_is_the_nearest_allowed_action_and_nothing_else_is_asked(
    margin, mask, proposed, preference
):
    asked = Asked()
    rules = gx.margin_rule(asked, name="costly", lazy=True) & gx.mask_rule(cheap)
    guardian = gx.Guardian(SPACE, rules, embedding=PLACES)
    verdict = guardian.certify({"margin": margin, "mask": mask}, proposed, preference=preference)
    allowed = mask & (margin >= 0)
    distance = np.linalg.norm(PLACES - PLACES[proposed], axis=1)
    prefer = np.zeros(N) if preference is None else np.where(np.isnan(preference), -np.inf, preference)
    order = sorted(range(N), key=lambda a: (distance[a], -prefer[a], a))
    nearest = next((a for a in order if allowed[a]), None)
    until = N if nearest is None else order.index(nearest) + 1
    # what the cheap rule forbids is never asked
    assert asked.actions == [a for a in order[:until] if mask[a]]
    known = np.isin(np.arange(N), asked.actions)
    assert np.array_equal(verdict.safe_set.tested, known | ~mask)
    assert np.array_equal(verdict.safe_set.allowed, known & allowed)
    if nearest is None:
        assert verdict.status == "inevitable"
        worst = np.where(mask, margin, -1.0)
        assert worst[verdict.action] == worst.max()
    else:
        assert verdict.action == nearest
        assert verdict.status == ("allowed" if nearest == proposed else "projected")
        assert verdict.exact


@given(tables, masks, actions)
def test_lazy_and_complete_agree(margin, mask, proposed):
    """Where margins break no ties, being lazy changes neither choice nor status; complete sets are complete."""
    state = {"margin": np.minimum(margin, 0.0), "mask": mask}
    both = [
        gx.Guardian(SPACE, [gx.mask_rule(cheap), gx.margin_rule(Asked(), lazy=lazy)], embedding=PLACES)
        for lazy in (True, False)
    ]
    lazy, eager = (g.certify(state, proposed) for g in both)
    assert lazy.status == eager.status
    if not lazy.inevitable:  # there, what a cheap rule forbids is judged by that rule alone
        assert (lazy.action, lazy.distance) == (eager.action, eager.distance)
    assert not (lazy.safe_set.allowed & ~eager.safe_set.allowed).any()
    assert not (lazy.safe_set.tested & ~lazy.safe_set.allowed & eager.safe_set.allowed).any()
    complete, reference = (g.safe_sets([state]) for g in both)
    assert complete.tested.all()
    assert np.array_equal(complete.allowed, reference.allowed)
    assert both[0].fingerprint == both[1].fingerprint  # laziness is not about what is allowed


@given(tables, masks, actions)
def test_an_alternative_that_holds_already_needs_no_asking(margin, mask, proposed):
    asked = Asked()
    guardian = gx.Guardian(SPACE, gx.mask_rule(cheap) | gx.margin_rule(asked, lazy=True), embedding=PLACES)
    verdict = guardian.certify({"margin": margin, "mask": mask}, proposed)
    assert not any(mask[a] for a in asked.actions)
    allowed = mask | (margin >= 0)
    if allowed.any():
        distance = np.linalg.norm(PLACES - PLACES[proposed], axis=1)
        assert distance[verdict.action] == distance[allowed].min()
        assert allowed[verdict.action]
    else:
        assert verdict.status == "inevitable"


def test_batches_are_judged_row_by_row_and_monitoring_lets_through():
    asked = Asked()
    rule = gx.margin_rule(asked, name="costly", lazy=True)
    guardian = gx.Guardian(SPACE, rule, embedding=PLACES, mode="monitor")
    states = [{"margin": np.full(N, 1.0)}, {"margin": np.array([-1.0, 1, 1, 1, 1, 1])}]
    verdicts = guardian.certify_batch(states, np.array([2, 0]))
    assert asked.actions == [2, 0, 1]
    assert verdicts.action.tolist() == [2, 0]
    assert [v.suggestion for v in verdicts] == [2, 1]
    assert guardian.audit.tally.projected == 1
    assert guardian.audit.tally.rules["costly"].blocked == 1


def test_a_lazy_rule_that_fails_means_the_fallback_and_the_fallback_is_asked_about():
    state = {"margin": np.array([-1.0, 1, 1, 1, 1, 1])}
    for fallback, status in ((3, "fallback"), (0, None)):
        asked = Asked(fail_at=1)
        guardian = gx.Guardian(SPACE, gx.margin_rule(asked, lazy=True), embedding=PLACES, fallback=fallback)
        if status:
            verdict = guardian.certify(state, 1)
            assert (verdict.action, verdict.status) == (3, "fallback")
            assert "the emulator is gone" in verdict.reason
        else:  # the declared action is forbidden: nothing may be executed
            with pytest.raises(gx.StopEpisode, match="the emulator is gone"):
                guardian.certify(state, 1)
        assert asked.actions == [1, fallback]
    with pytest.raises(gx.GxError, match="the emulator is gone"):
        guardian.safe_sets([state])


def test_the_proposal_comes_first_even_where_places_coincide():
    asked = Asked()
    guardian = gx.Guardian(SPACE, gx.margin_rule(asked, lazy=True), embedding=np.zeros((N, 2)))
    assert guardian.certify({"margin": np.ones(N)}, 4).status == "allowed"
    assert asked.actions == [4]


def test_rules_that_answer_for_all_actions_at_once_cannot_be_lazy():
    with pytest.raises(gx.GxError, match=r"only gx.rule and gx.margin_rule"):
        gx.mask_rule(cheap, lazy=True)
