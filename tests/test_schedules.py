import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpd_gx.errors import GxError
from rlpd_gx.schedules import Abrupt, Constant, Interval, Sigmoid

shares = st.floats(0, 1)


def test_sigmoid_is_the_equation_of_dss():
    dss = Sigmoid(total_steps=1000, low=0.1, high=0.5, steepness=10.0)
    for step in (0, 1, 250, 500, 777, 1000):
        k = 10.0 / 1000
        assert dss(step) == pytest.approx(0.1 + 0.4 / (1 + math.exp(-k * (step - 500))), abs=1e-12)
    assert dss(500) == pytest.approx(0.3)


@given(shares, shares, st.integers(1, 10**7), st.floats(1e-3, 1e6), st.integers(0, 10**8))
def test_sigmoid_stays_between_its_ends_and_moves_one_way(low, high, total, steepness, step):
    dss = Sigmoid(total, low, high, steepness)
    here, later = dss(step), dss(step + 1)
    tolerance = 1e-12
    assert min(low, high) - tolerance <= here <= max(low, high) + tolerance
    assert (later - here) * (high - low) >= -tolerance
    assert dss(total + step) == dss(total)


def test_comparators():
    assert [Constant(0.5)(step) for step in (0, 10**6)] == [0.5, 0.5]
    assert [Abrupt(100, 0.1, 0.4)(step) for step in (0, 99, 100, 10**6)] == [0.1, 0.1, 0.4, 0.4]
    assert [Abrupt(100, 0.0, 1.0)(step) for step in (0, 99, 100)] == [0.0, 0.0, 1.0]


def test_interval_is_the_equation_of_dts_rounded_to_the_nearest():
    dts = Interval(total_steps=100, low=1, high=9, exponent=2.0)
    assert [dts(step) for step in (0, 25, 50, 75, 100, 10**6)] == [1, 2, 3, 6, 9, 9]  # 1.5 -> 2, 5.5 -> 6
    assert [Interval(10, low=4, high=1)(step) for step in (0, 5, 10)] == [4, 3, 1]


@given(
    st.integers(1, 10**7), st.integers(1, 100), st.integers(1, 100), st.floats(0.1, 10), st.integers(0, 10**8)
)
def test_interval_is_a_whole_number_between_its_ends(total, low, high, exponent, step):
    value = Interval(total, low, high, exponent)(step)
    assert isinstance(value, int)
    assert min(low, high) <= value <= max(low, high)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Constant(1.5), "value is a fraction of the minibatch"),
        (lambda: Sigmoid(10, low=-0.1), "low is a fraction"),
        (lambda: Sigmoid(0), "total_steps must be positive"),
        (lambda: Abrupt(5, after=float("nan")), "after is a fraction"),
        (lambda: Interval(10, low=0), "low must be positive"),
        (lambda: Interval(10, exponent=float("inf")), "exponent must be positive"),
    ],
)
def test_bad_settings_get_one_sentence(make, sentence):
    with pytest.raises(GxError, match=sentence):
        make()
