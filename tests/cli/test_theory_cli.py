"""`rlpd-gx theory`, as a user runs it."""

import subprocess
import sys

import numpy as np
import pytest

from rlpd_gx import cli
from rlpd_gx.theory import contraction, lure_corridor, save_mdp


@pytest.fixture
def run(monkeypatch, capsys):
    """Run `rlpd-gx ARGUMENTS`; return exit code, standard output, standard error."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["rlpd-gx", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        captured = capsys.readouterr()
        return stopped.value.code or 0, captured.out, captured.err

    return run


@pytest.fixture
def corridor(tmp_path):
    save_mdp(tmp_path / "corridor.npz", lure_corridor().mdp)
    return tmp_path / "corridor.npz"


def test_solve_writes_the_certified_solution(run, corridor):
    code, out, err = run("theory", "solve", corridor)
    assert code == 0
    assert "every value within" in out
    assert "corridor.solution.npz" in out
    assert "error at most" in err, "the progress line"
    with np.load(corridor.with_name("corridor.solution.npz")) as solution:
        np.testing.assert_allclose(solution["values"], lure_corridor().values, atol=solution["error_bound"])
        assert solution["error_bound"] <= 1e-6


def test_solve_takes_output_tolerance_and_alpha(run, corridor, tmp_path):
    code, _, _ = run(
        "theory", "solve", corridor, "-o", tmp_path / "soft.npz", "--tolerance", 1e-9, "--alpha", 0.2
    )
    assert code == 0
    with np.load(tmp_path / "soft.npz") as solution:
        np.testing.assert_allclose(solution["values"], lure_corridor().soft_values(0.2), rtol=0, atol=1e-9)
        assert solution["policy"].shape == (6, 2)


def test_solve_can_prune_first(run, tmp_path):
    transitions = np.zeros((3, 2, 3))
    transitions[0, 0, 1] = transitions[0, 1, 2] = transitions[1, :, 1] = transitions[2, :, 2] = 1.0
    allowed = np.array([[True, True], [False, False], [True, True]])
    rewards = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    np.savez(
        tmp_path / "m.npz",
        transitions=transitions,
        rewards=rewards,
        discount=0.9,
        allowed=allowed,
        fallback=0,
    )
    code, out, _ = run("theory", "solve", tmp_path / "m.npz", "--prune")
    assert code == 0
    assert "state 0: action 0 removed" in out
    with np.load(tmp_path / "m.solution.npz") as solution:
        assert solution["policy"][0] == 1
        assert solution["inevitable"].tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere.npz"], "nowhere.npz does not exist"),
        (["broken.npz"], "broken.npz is not a complete .npz file"),
        (["corridor.npz", "-o", "corridor.npz"], "is the MDP itself"),
        (["corridor.npz", "-o", "nowhere/out.npz"], "the folder nowhere does not exist"),
        (["corridor.npz", "--tolerance", "1e-30"], "finer than float64 can certify"),
        (["corridor.npz", "--tolerance", "-1"], "tolerance is -1.0"),
        (["corridor.npz", "--alpha", "nan"], "alpha is nan"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_exit_code_2(run, corridor, monkeypatch, arguments, sentence):
    monkeypatch.chdir(corridor.parent)
    (corridor.parent / "broken.npz").write_bytes(corridor.read_bytes()[:1000])
    code, out, err = run("theory", "solve", *arguments)
    assert code == 2
    assert out == ""
    assert sentence in err
    assert err.strip().splitlines()[-1].startswith("rlpd-gx: ")
    assert "Traceback" not in err
    assert sorted(path.name for path in corridor.parent.iterdir()) == ["broken.npz", "corridor.npz"]


def test_verify_prints_observed_factors_beside_gamma(run):
    code, out, _ = run(
        "theory", "verify", "--mdps", 1, "--states", 10, "--pairs", 10, "--gamma", 0.5, "--gamma", 0.9
    )
    assert code == 0
    for number in ("0.5", "0.9", "0.500000", "0.900000"):
        assert number in out
    assert out.count("holds") == 2


def test_verify_exits_with_1_where_an_operator_does_not_contract(run, monkeypatch):
    """The maximum replaced by a sum over the safe set: worth more the more actions there are."""
    monkeypatch.setattr(contraction, "guarded_max", lambda q, allowed: np.where(allowed, q, 0.0).sum(axis=1))
    code, out, _ = run("theory", "verify", "--mdps", 1, "--states", 10, "--gamma", 0.9)
    assert code == 1
    assert "FAILS" in out


def test_verify_refuses_an_impossible_discount(run):
    code, _, err = run("theory", "verify", "--gamma", 1.0)
    assert code == 2
    assert "discount is 1.0" in err


def test_the_command_starts_without_heavy_imports():
    heavy = ("numpy", "scipy", "torch", "rich.table")
    program = f"import sys, rlpd_gx.cli; print([name for name in {heavy} if name in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert loaded.strip() == "[]"
