"""What is proposed before the guard, critical states, and the margin scan."""

import numpy as np

from rlpd_gx.metrics import proposals
from rlpd_gx.safe_sets import Box, Mask
from rlpd_gx.types import Status, Tally, Verdict


def _verdict(margin: float, *, corrected: bool) -> Verdict:
    status = Status.PROJECTED if corrected else Status.ALLOWED
    return Verdict(0, 0, status, margins={"rule": margin}, executed_margin=max(margin, 0.0))


def test_rates_are_of_proposals_and_leave_out_what_was_executed_instead() -> None:
    tally, margins = Tally(), [-1.0, -0.1, 0.01, 0.02, 0.5, 3.0, 3.0, 3.0]
    for margin in margins:
        tally.add(_verdict(margin, corrected=margin < 0), near_miss=0.05)
    found = proposals.proposals(tally)
    assert (found["pre_guard_violation_rate"], found["near_miss_rate"]) == (0.25, 0.25)
    assert found["near_miss_executed_rate"] == 0.25
    assert tally.forbidden_executed == 0  # corrected, and still counted as proposals
    assert proposals.proposals(Tally())["pre_guard_violation_rate"] == 0


def test_a_state_is_critical_where_actions_differ() -> None:
    sets = [
        Mask(np.array([True, True, True])),
        Mask(np.array([True, False, True])),
        Mask(np.array([False, False, False])),  # inevitable: no choice to make
        Mask(np.array([True, False, True]), np.array([True, False, True])),  # forbidden or untested: unknown
        None,
    ]
    assert proposals.critical(sets, np.zeros(0)).tolist() == [False, True, False, False, False]
    tried = np.linspace(-1, 1, 9)[:, None]
    boxes = [Box(np.array([-1.0]), np.array([1.0])), Box(np.array([-1.0]), np.array([0.2]))]
    assert proposals.critical(boxes, tried).tolist() == [False, True]


def test_the_margin_scan_is_the_survival_curve_of_the_margins() -> None:
    margins = np.array([-0.5, 0.0, 0.1, 0.3])
    found = proposals.margin_scan(lambda delta: margins - delta, (0.0, 0.1, 0.2, 1.0))
    assert found == {"delta": [0.0, 0.1, 0.2, 1.0], "allowed_share": [0.75, 0.5, 0.25, 0.0]}
    unshifted = proposals.margin_scan(lambda delta: margins, (0.0, 1.0))  # a scan that shifts nothing
    assert unshifted["allowed_share"] == [0.75, 0.75]
