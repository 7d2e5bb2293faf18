"""Rules say which actions are allowed. The Guardian enforces them; some environments come with rules."""

from rlpd_gx.rules import forms
from rlpd_gx.rules.barriers import cbf_rule
from rlpd_gx.rules.fingerprint import code_of, fingerprint, unreadable
from rlpd_gx.rules.lookahead import Lookahead, Model, Place, Twin
from rlpd_gx.rules.rule import (
    Atom,
    Combined,
    Rule,
    alternatives,
    bounds_rule,
    conjuncts,
    ellipsoid_rule,
    halfspace_rule,
    l1_rule,
    maker,
    margin_rule,
    margins_rule,
    mask_rule,
    positive_sum_rule,
    rule,
)

__all__ = [
    "Atom",
    "Combined",
    "Lookahead",
    "Model",
    "Place",
    "Rule",
    "Twin",
    "alternatives",
    "bounds_rule",
    "cbf_rule",
    "code_of",
    "conjuncts",
    "ellipsoid_rule",
    "fingerprint",
    "forms",
    "halfspace_rule",
    "l1_rule",
    "maker",
    "margin_rule",
    "margins_rule",
    "mask_rule",
    "positive_sum_rule",
    "rule",
    "unreadable",
]
