"""A short slice of the soak, and proof that its checker and its counting can be trusted."""

import json

import numpy as np
import pytest
from torture import soak
from torture._exact_checker import violations
from torture._rule_cases import HOSTILE, ordinary


def test_the_checker_catches_planted_violations():
    soak.self_test()


def test_a_blind_checker_fails_the_self_test(monkeypatch):
    monkeypatch.setattr(soak, "violations", lambda case, actions: np.empty(0, dtype=int))
    with pytest.raises(SystemExit, match="broken"):
        soak.self_test()


def test_every_forbidden_proposal_counts_as_a_violation():
    case = ordinary(np.random.default_rng(1), 500)
    assert len(violations(case, case.inside.astype(case.dtype))) == 0
    beyond = np.broadcast_to(np.nextafter(case.high, case.dtype(9)), case.proposed.shape)
    assert len(violations(case, beyond)) == 500


def test_a_short_soak_holds_and_can_be_resumed(tmp_path, monkeypatch):
    monkeypatch.setitem(soak.BATCH, "batched", 2_000)
    monkeypatch.setitem(soak.BATCH, "hostile", 16)
    goals = {"batched": 5_000, "single": 256, "hostile": 96}
    whole = soak.run_counts(goals, 3, tmp_path / "whole.json", lambda line: None)
    for row in whole:
        assert row.broken == []
    assert [row.tried for row in whole[:3]] == list(goals.values())
    less = {"batched": 2_000, "single": 64, "hostile": 48}
    soak.run_counts(less, 3, tmp_path / "parts.json", lambda line: None)
    assert soak.run_counts(goals, 3, tmp_path / "parts.json", lambda line: None) == whole
    assert json.loads((tmp_path / "parts.json").read_text())["seed"] == 3
    with pytest.raises(SystemExit, match="seed 3"):
        soak.run_counts(goals, 4, tmp_path / "parts.json", lambda line: None)


@pytest.mark.parametrize("attack", HOSTILE, ids=lambda f: f.__name__)
def test_each_hostile_attack_is_withstood(attack):
    for seed in range(2):
        case = attack(np.random.default_rng(seed), 24)
        counts = soak.Counts()
        soak.count(case, *soak.batched(case), counts, attack.__name__)
        assert counts.broken == counts.false_inevitable == 0, counts.lines
