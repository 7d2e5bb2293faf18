"""RAM rules with their thresholds moved inwards, for margin scans.

Their margins are capped at 0 where a prediction ends, so taking delta from them would forbid everything. What moves is
the row of the table: how far it keeps from things, or what it keeps in hand. This is not in `ram_rules.py`, because the
code of that file is part of every rule's fingerprint, and a scan does not change what a rule allows.
"""

from dataclasses import replace

from rlpd_gx.envs.atari.games import RuleRow
from rlpd_gx.envs.atari.objects import Sight
from rlpd_gx.envs.atari.ram_rules import RamRule
from rlpd_gx.rules import Rule


def stricter(rule: Rule, delta: float) -> Rule:
    """The rule with its threshold moved inwards by delta: pixels, or steps of a resource."""
    if not isinstance(rule, RamRule):
        return rule.stricter(delta)
    row, game, actions = rule.fn._told  # type: ignore[attr-defined]  # what it was made from
    return RamRule(_moved(row, delta), Sight(game), actions) if delta else rule


def _moved(row: RuleRow, delta: float) -> RuleRow:
    if row.kind == "collision":
        return replace(row, margin=row.margin + delta)
    if row.kind == "must reach":  # delta is in pixels, the margin of such a row in steps
        return replace(row, margin=row.margin + delta / row.speed)
    if row.kind == "resource":
        return replace(row, needs=f"({row.needs}) + {delta}")
    return row  # a place where actions are blocked has no threshold
