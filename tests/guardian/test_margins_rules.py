"""Rules that give the margins of all actions at once."""

import gymnasium as gym
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from rlpd_gx.errors import GxError, StopEpisode
from rlpd_gx.guardian import Guardian
from rlpd_gx.rules import margins_rule

SPACE = gym.spaces.Discrete(3)


def test_what_is_not_below_zero_is_allowed_and_thresholds_move():
    rule = margins_rule(lambda state: np.array([-1.0, 0.0, state]), name="margins")
    guardian = Guardian(SPACE, rule)
    assert guardian.safe_sets([2.0]).allowed.tolist() == [[False, True, True]]
    assert Guardian(SPACE, rule.shifted(1)).safe_sets([2.0]).allowed.tolist() == [[False, False, True]]
    verdict = guardian.certify(2.0, 0)
    assert verdict.action in (1, 2)


def test_where_nothing_is_allowed_the_largest_margin_runs():
    verdict = Guardian(SPACE, margins_rule(lambda state: np.array([-3.0, -1.0, -2.0]))).certify(0.0, 0)
    assert verdict.inevitable
    assert verdict.action == 1


@pytest.mark.parametrize("answer", [np.zeros(4), np.array([0.0, np.nan, 0.0]), None, 1.0])
def test_an_answer_that_is_none_lets_nothing_pass(answer):
    guardian = Guardian(SPACE, margins_rule(lambda state: answer, name="odd"))
    with pytest.raises(StopEpisode, match="rule 'odd' returned"):
        guardian.certify(0.0, 1)


class Counted:
    """A rule that looks its margins up in tables [S, 3] and counts how often it is asked."""

    def __init__(self, tables, batched):
        self.tables, self.batched, self.asked = np.array(tables), batched, 0

    def __call__(self, state):
        self.asked += 1
        return self.tables[np.asarray(state)]

    def rule(self, name, shift):
        return margins_rule(self, name=name, batched=self.batched).shifted(shift)


TABLES = st.lists(
    st.lists(st.sampled_from([-1.5, -1.0, 0.0, 0.5]), min_size=3, max_size=3), min_size=4, max_size=4
)


@given(
    TABLES,
    TABLES,
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.25]),
    st.sampled_from(["enforce", "monitor"]),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=12),
)
def test_verdicts_that_come_again_are_those_of_a_batch(first, second, batched, other, shift, mode, steps):
    asked = [Counted(first, batched), Counted(second, other)]
    rules = [asked[0].rule("first", shift), asked[1].rule("second", 0.0)]
    guardian, apart = Guardian(SPACE, rules, mode=mode), Guardian(SPACE, rules, mode=mode)
    for state, proposed in steps:
        before = [rule.asked for rule in asked]
        verdict, safe_set = guardian.certify(state, proposed), guardian.safe_set(state)
        assert [rule.asked for rule in asked] == [count + 2 for count in before]  # for each, every time
        expected = apart.certify_batch(np.array([state]), np.array([proposed]))[0]
        assert verdict == expected
        assert (verdict.distance, verdict.executed_margin) == (expected.distance, expected.executed_margin)
        for found in (verdict.safe_set, safe_set):
            assert found.encode().tolist() == expected.safe_set.encode().tolist()
    assert guardian.audit.tally == apart.audit.tally


def test_margins_that_are_not_numbers_are_never_recalled():
    answers = iter([np.zeros((1, 3)), np.full((1, 3), np.nan)] * 3)
    guardian = Guardian(SPACE, margins_rule(lambda states: next(answers), name="odd", batched=True))
    for _ in range(2):
        assert guardian.certify(0.0, 1).status == "allowed"
        with pytest.raises(StopEpisode, match="rule 'odd' returned NaN"):
            guardian.certify(0.0, 1)
    assert guardian.safe_set(0.0).allowed.all()
    with pytest.raises(GxError, match="rule 'odd' returned NaN"):
        guardian.safe_set(0.0)
    assert guardian.audit.tally.stopped == 2


@pytest.mark.parametrize("shape", [(3,), (3, 1), (1, 1, 3)])
def test_margins_of_another_shape_are_refused_even_if_their_bytes_are_known(shape):
    answers = [np.zeros((1, 3)), np.zeros(shape)]
    rule = margins_rule(lambda states: answers[int(states[0])], name="odd", batched=True)
    guardian = Guardian(SPACE, rule, fallback=2)
    assert guardian.certify(0, 0).status == "allowed"
    assert guardian.certify(1, 0).status == "fallback"


def test_a_full_memory_changes_neither_verdicts_nor_counts(monkeypatch):
    monkeypatch.setattr("rlpd_gx.guardian.memory.GRADED_CAPACITY", 2)
    guardian = Guardian(SPACE, margins_rule(lambda state: np.arange(3.0) - state))
    for state in (0, 1, 2, 1, 0):
        assert (guardian.certify(state, 1).status == "projected") == (state == 2)
        assert guardian.safe_set(state).allowed.tolist() == [state <= 0, state <= 1, True]
    assert (guardian.audit.tally.proposals, guardian.audit.tally.projected) == (5, 1)
