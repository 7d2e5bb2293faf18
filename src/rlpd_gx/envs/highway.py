"""Rules for highway-env's discrete driving actions: no lane change into an occupied gap, no tail-gating.

They read the simulator: use them with `state=traffic`.
"""

from typing import Any, SupportsFloat

import numpy as np

from rlpd_gx.rules import mask_rule
from rlpd_gx.trees import Json, Tree
from rlpd_gx.types import Info

LANE_LEFT, IDLE, LANE_RIGHT, FASTER, SLOWER = range(5)
HEADWAY_SECONDS = 1.5
LENGTH_METRES = 5.0


def traffic(env: Any, observation: Tree, info: Info) -> Json:
    """The road as the rules read it: own position, speed and lane, and those of every other vehicle."""
    simulator = env.unwrapped
    road, ego = simulator.road, simulator.vehicle
    others = [v for v in road.vehicles if v is not ego]
    return {
        "x": float(ego.position[0]),
        "speed": float(ego.speed),
        "lane": int(ego.lane_index[2]),
        "lanes": len(road.network.all_side_lanes(ego.lane_index)),
        "others_x": np.array([v.position[0] for v in others], dtype=float),
        "others_speed": np.array([v.speed for v in others], dtype=float),
        "others_lane": np.array([v.lane_index[2] for v in others], dtype=int),
    }


def _free(state: Json, lane: int) -> bool:
    """Whether the gap beside or around us in a lane is wide enough, also for the vehicle behind us there."""
    if not 0 <= lane < state["lanes"]:
        return False
    there = state["others_lane"] == lane
    ahead = state["others_x"][there] - state["x"]
    speed = state["others_speed"][there]
    wanted = LENGTH_METRES + HEADWAY_SECONDS * np.where(
        ahead >= 0, state["speed"] - speed, speed - state["speed"]
    )
    return bool((np.abs(ahead) > np.maximum(wanted, 2 * LENGTH_METRES)).all())


def unsafe_event(
    observation: Tree, reward: SupportsFloat, terminated: bool, truncated: bool, info: Info
) -> bool:
    """A collision."""
    return bool(info["crashed"])


@mask_rule(name="occupied gap")
def occupied_gap(state: Json) -> np.ndarray:
    """No lane change into a gap that is not free."""
    mask = np.ones(5, dtype=bool)
    mask[LANE_LEFT] = _free(state, state["lane"] - 1)
    mask[LANE_RIGHT] = _free(state, state["lane"] + 1)
    return mask


@mask_rule(name="time headway")
def time_headway(state: Json) -> np.ndarray:
    """No acceleration while the vehicle ahead is less than a time headway away."""
    mask = np.ones(5, dtype=bool)
    ahead = state["others_x"][state["others_lane"] == state["lane"]] - state["x"]
    ahead = ahead[ahead > 0]
    if len(ahead):
        mask[FASTER] = ahead.min() - LENGTH_METRES >= HEADWAY_SECONDS * state["speed"]
    return mask


driving = occupied_gap & time_headway
state = traffic  # what `rlpd-gx guard` lets these rules read
embedding = np.array([[0, -1], [0, 0], [0, 1], [1, 0], [-1, 0]], dtype=float)  # (throttle, lane)
