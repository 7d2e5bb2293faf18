import numpy as np
import pytest

from rlpd_gx.errors import GxError
from rlpd_gx.replay.timeline import Layout, Timeline

ROBOT = Layout(
    {"joints": np.dtype((np.float64, (17,))), "goal": np.dtype(np.float32)},
    np.dtype((np.float32, (6,))),
    np.dtype((np.float32, (12,))),
)


def two_episodes() -> dict[str, np.ndarray]:
    """Episodes of 3 and 1 steps."""
    flat = {name: np.zeros((6, *dtype.shape), dtype.base) for name, dtype in ROBOT.columns().items()}
    flat["is_step"][:] = [1, 1, 1, 0, 1, 0]
    flat["episode_step"][:] = [0, 1, 2, 3, 0, 1]
    flat["terminated"][2] = flat["truncated"][4] = True
    return flat


def test_flat_names_round_trip():
    flat = two_episodes() | {"extras/lives": np.arange(6)}
    again = Timeline.from_columns(flat).columns()
    assert again.keys() == flat.keys()
    assert all(again[name] is flat[name] for name in flat)
    assert "6 rows" in repr(Timeline.from_columns(flat))


@pytest.mark.parametrize(
    ("name", "column", "sentence"),
    [
        ("reward", np.zeros(5, np.float32), r"column reward has shape \(5,\), but is_step has 6 rows"),
        ("observation/goal", np.zeros(7, np.float32), r"column observation/goal has shape \(7,\)"),
        ("extras/lives", np.zeros(1), r"column extras/lives has shape \(1,\)"),
        ("reward", np.zeros(6, np.float64), "column reward has rows of float64, expected float32"),
        ("terminated", np.zeros(6, np.uint8), "column terminated has rows of uint8, expected bool"),
        ("proposed_action", np.zeros((6, 2), np.float32), "column proposed_action has rows of"),
        ("safe_set", np.zeros(6, np.float32), "column safe_set must be"),
    ],
)
def test_bad_columns_get_one_sentence(name, column, sentence):
    with pytest.raises(GxError, match=sentence):
        Timeline.from_columns(two_episodes() | {name: column})


def test_missing_and_unknown_columns_are_named():
    flat = two_episodes()
    flat["bogus"] = flat.pop("margin")
    with pytest.raises(GxError, match=r"missing \['margin'\], unknown \['bogus'\]"):
        Timeline.from_columns(flat)


def test_whole_episodes_pass_the_check():
    Timeline.from_columns(two_episodes()).check_episodes()
    Timeline.from_columns({name: column[:0] for name, column in two_episodes().items()}).check_episodes()


@pytest.mark.parametrize(
    ("name", "row", "value", "sentence"),
    [
        ("episode_step", 0, 1, "row 0: episode_step is 1, expected 0"),
        ("episode_step", 4, 4, "row 4: episode_step is 4, expected 0"),
        ("is_step", 1, False, "row 2: episode_step is 2, expected 0"),
        ("truncated", 1, True, "row 2: a step follows the end of its episode"),
        ("is_step", 5, True, "row 5: a step without its next observation ends the data"),
    ],
)
def test_broken_episodes_are_found_by_row(name, row, value, sentence):
    flat = two_episodes()
    flat[name][row] = value
    with pytest.raises(GxError, match=sentence):
        Timeline.from_columns(flat).check_episodes()
