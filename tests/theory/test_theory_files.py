"""MDP and solution files: round trips, and a sentence for every way a file can be broken."""

import numpy as np
import pytest

import rlpd_gx as gx
from rlpd_gx.theory import (
    TabularMDP,
    guarded_value_iteration,
    load_mdp,
    lure_corridor,
    prune,
    random_mdp,
    save_mdp,
    save_solution,
)


def arrays():
    return {
        "transitions": np.full((3, 2, 3), 1 / 3),
        "rewards": np.arange(6.0).reshape(3, 2),
        "discount": 0.9,
        "allowed": np.array([[True, True], [True, False], [True, True]]),
    }


@pytest.mark.parametrize(
    "mdp", [lure_corridor().mdp, random_mdp(np.random.default_rng(0), 20, 3, 0.9)], ids=repr
)
def test_a_saved_mdp_comes_back(tmp_path, mdp):
    save_mdp(tmp_path / "mdp.npz", mdp)
    again = load_mdp(tmp_path / "mdp.npz")
    np.testing.assert_array_equal(again.allowed, mdp.allowed)
    np.testing.assert_array_equal(
        guarded_value_iteration(again).q, guarded_value_iteration(mdp).q, strict=True
    )


def test_inevitable_states_and_fallbacks_survive(tmp_path):
    given = arrays() | {"fallback": np.array([0, 1, 0])}
    given["allowed"][1] = False
    np.savez(tmp_path / "mdp.npz", **given)
    mdp = load_mdp(tmp_path / "mdp.npz")
    assert mdp.inevitable.tolist() == [False, True, False]
    pruned = prune(mdp).mdp
    save_mdp(tmp_path / "pruned.npz", pruned)
    again = load_mdp(tmp_path / "pruned.npz")
    np.testing.assert_array_equal(again.inevitable, pruned.inevitable)
    np.testing.assert_array_equal(again.allowed, pruned.allowed)


def test_a_solution_is_written_whole(tmp_path):
    mdp = TabularMDP(**arrays())
    solution = guarded_value_iteration(mdp, 1e-8, alpha=0.5)
    save_solution(tmp_path / "out.npz", mdp, solution, 0.5)
    with np.load(tmp_path / "out.npz") as written:
        assert set(written) == {
            "q", "values", "policy", "error_bound", "iterations", "inevitable", "discount", "alpha"
        }  # fmt: skip
        np.testing.assert_array_equal(written["q"], solution.q)
        assert written["error_bound"] == solution.error_bound
        assert written["alpha"] == 0.5
    assert [path.name for path in tmp_path.iterdir()] == ["out.npz"]


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path):
    mdp = TabularMDP(**arrays())
    target = tmp_path / "out.npz"
    target.mkdir()
    with pytest.raises(gx.GxError, match=r"out.npz: cannot be written: Is a directory"):
        save_mdp(target, mdp)
    assert [path.name for path in tmp_path.iterdir()] == ["out.npz"]
    (tmp_path / "file").touch()
    with pytest.raises(gx.GxError, match=r"out.npz: cannot be written"):
        save_mdp(tmp_path / "file" / "out.npz", mdp)


@pytest.mark.parametrize("key", ["transitions", "rewards", "discount", "allowed"])
def test_a_missing_key_is_named(tmp_path, key):
    given = arrays()
    del given[key]
    np.savez(tmp_path / "mdp.npz", **given)
    with pytest.raises(gx.GxError, match=f"mdp.npz: the key '{key}' is missing"):
        load_mdp(tmp_path / "mdp.npz")


@pytest.mark.parametrize(
    ("spoilt", "sentence"),
    [
        ({"discount": np.array([0.9, 0.8])}, "discount has shape"),
        ({"discount": np.array("high")}, "discount has shape"),
        ({"discount": 1.5}, "discount is 1.5"),
        ({"transitions": np.full((3, 2, 3), 0.5)}, "state 0, action 0 sum to 1.5"),
        ({"inevitable": np.zeros(2, dtype=bool)}, "inevitable must hold booleans"),
        ({"rewards": np.array([[0, np.nan], [0, 0], [0, 0]])}, "reward of state 0, action 1 is nan"),
    ],
)
def test_wrong_contents_are_told_with_the_files_name(tmp_path, spoilt, sentence):
    np.savez(tmp_path / "mdp.npz", **arrays() | spoilt)
    with pytest.raises(gx.GxError, match=f"mdp.npz: .*{sentence}"):
        load_mdp(tmp_path / "mdp.npz")


@pytest.mark.parametrize(
    ("spoilt", "sentence"),
    [
        ({"transitions_indices": np.full(90, 7)}, "state 0, action 0 leads to state 7, which does not exist"),
        ({"transitions_indptr": np.arange(5)}, r"transitions_indptr has shape \(5,\)"),
        ({"transitions_indices": np.zeros(3, dtype=int)}, "are no CSR matrix"),
        ({"transitions_indices": np.full(18, 0.5)}, "transitions_indices holds float64"),
        ({"transitions_indptr": np.arange(0, 19.0, 3)}, "transitions_indptr holds float64"),
        ({"transitions_data": np.full(18, "1")}, "transitions_data holds <U1"),
        ({"allowed": np.ones(18, dtype=bool)}, r"allowed has shape \(18,\)"),
        ({"transitions_data": None}, "the key 'transitions_data' is missing"),
    ],
)
def test_broken_sparse_tables_are_refused(tmp_path, spoilt, sentence):
    given = arrays() | {
        "transitions_data": np.full(18, 1 / 3),
        "transitions_indices": np.tile(np.arange(3), 6),
        "transitions_indptr": np.arange(0, 19, 3),
    }
    del given["transitions"]
    np.savez(tmp_path / "mdp.npz", **given)
    load_mdp(tmp_path / "mdp.npz")
    given |= {
        key: value[:18] if key == "transitions_indices" else value
        for key, value in spoilt.items()
        if value is not None
    }
    np.savez(
        tmp_path / "mdp.npz", **{key: value for key, value in given.items() if spoilt.get(key, 0) is not None}
    )
    with pytest.raises(gx.GxError, match=sentence):
        load_mdp(tmp_path / "mdp.npz")


def test_files_that_are_no_archives_are_refused(tmp_path):
    path = tmp_path / "mdp.npz"
    with pytest.raises(gx.GxError, match=r"mdp.npz does not exist"):
        load_mdp(path)
    with pytest.raises(gx.GxError, match="cannot be read"):
        load_mdp(tmp_path)
    for content in (b"", b"state,action,reward\n1,2,3\n"):
        path.write_bytes(content)
        with pytest.raises(gx.GxError, match=r"is not a complete \.npz file"):
            load_mdp(path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(gx.GxError, match=r"is not a complete \.npz file"):
        load_mdp(path)


def test_nothing_is_ever_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was loaded",))

    np.savez(tmp_path / "mdp.npz", **arrays() | {"rewards": np.array([Bomb()], dtype=object)})
    with pytest.raises(gx.GxError, match="plain arrays"):
        load_mdp(tmp_path / "mdp.npz")


def test_every_truncation_and_every_flipped_byte_is_survived(tmp_path):
    """A damaged file is refused in one sentence, or (bytes nobody reads) read unharmed; never a crash."""
    path = tmp_path / "mdp.npz"
    np.savez(path, **arrays())
    whole = path.read_bytes()
    expected = load_mdp(path).rewards
    for cut in range(0, len(whole), 37):
        path.write_bytes(whole[:cut])
        with pytest.raises(gx.GxError):
            load_mdp(path)
    refused = 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x01]) + whole[place + 1 :])
        try:
            np.testing.assert_array_equal(load_mdp(path).rewards, expected)
        except gx.GxError:
            refused += 1
    assert refused > len(whole) / 2
