"""What an exported policy knows of its spaces: observations are checked against them, and files keep them exactly."""

import json

import gymnasium as gym
import numpy as np
import pytest

import rlpd_gx as gx
from rlpd_gx.deploy import spaces
from rlpd_gx.deploy.export import _as_arrays, _batch


def test_lists_inside_nested_observations_are_arrays_too():
    floor, load = gym.spaces.Discrete(5), gym.spaces.Box(-1, 1, (2,), np.float32)
    space = gym.spaces.Dict({"floor": floor, "car/0": load, "car/1": load})  # as the Learner sees it
    given = {"floor": 3, "car": ([0, 1], np.zeros(2))}
    seen = _as_arrays(given, space)
    assert seen["floor"] == 3
    assert seen["car"][0].dtype == np.float32
    assert seen["car"][1] is given["car"][1]  # what is an array reaches the rules as in training
    assert _batch(seen, space, "the observation")["car/0"].tolist() == [[0, 1]]
    for wrong in (9, -1, 2.5, np.nan, "two"):
        sentence = rf"the observation\['floor'\] is {wrong}, but .* whole numbers from 0 to 4"
        with pytest.raises(gx.GxError, match=sentence):
            _batch({**given, "floor": wrong}, space, "the observation")
    with pytest.raises(gx.GxError, match=r"is \[1, 3\], but .* values of MultiDiscrete"):
        _batch([1, 3], gym.spaces.MultiDiscrete([2, 3]), "the observation")


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Box(-np.inf, np.inf, (3,), np.float64),
        gym.spaces.Box(np.array([-1, 0.1], np.float32), np.array([np.inf, 0.3], np.float32)),
        gym.spaces.Box(0, 255, (4, 84, 84), np.uint8),
        gym.spaces.Discrete(5, start=-2),
        gym.spaces.Dict(a=gym.spaces.MultiBinary(3), b=gym.spaces.Box(-1.0, 1.0, (2, 2))),
    ],
    ids=str,
)
def test_spaces_come_back_exactly(space):
    text = json.dumps(spaces.to_json(space), allow_nan=False)
    back = spaces.from_json(json.loads(text))
    assert back == space
    assert back.dtype == space.dtype
    if isinstance(space, gym.spaces.Box):
        assert back.low.tobytes() == space.low.tobytes()
        assert back.high.tobytes() == space.high.tobytes()
    assert len(text) < 300


def test_spaces_the_learner_does_not_know_are_refused():
    with pytest.raises(gx.GxError, match="cannot be exported"):
        spaces.to_json(gym.spaces.Text(3))
