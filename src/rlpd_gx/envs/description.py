"""What the loop needs of an environment beyond its spaces, so that it names no task."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import gymnasium as gym
import numpy as np

from rlpd_gx.envs.making import ATARI
from rlpd_gx.trees import JsonMapping


@dataclass(frozen=True)
class Description:
    """How an environment is evaluated, and how its data is stored."""

    evaluation_kwargs: JsonMapping = field(default_factory=dict)
    """Options for evaluations; Atari scores are unclipped and of whole games."""
    sample_in_evaluation: bool = False
    """Whether evaluations sample the policy instead of taking its mode."""
    reports_unsafe_events: bool = False
    """Whether `info["unsafe_event"]` is in every step, also without rules."""
    replay: Mapping[str, str] = field(default_factory=dict)
    """Options for replaying action logs into this environment's observation."""


def describe(env_id: str) -> Description:
    """The description of an environment by its name."""
    ours = ATARI.fullmatch(env_id)
    if ours is None:
        return Description()
    whole_games = {"life_loss_ends": False, "clip_rewards": False}
    return Description(
        whole_games,
        sample_in_evaluation=True,
        reports_unsafe_events=True,
        replay={"observation": ours["observation"]}
        | ({"table": ours["game"]} if ours["observation"] == "objects" else {}),
    )


def stored_as(env_id: str, space: gym.Space) -> tuple[str, gym.Space]:
    """Name and observation space of an environment's data: our Atari games are stored as ale-py's, frame by frame."""
    ours = ATARI.fullmatch(env_id)
    if ours is None:
        return env_id, space
    assert isinstance(space, gym.spaces.Box)
    from rlpd_gx.envs.atari.games import find_game

    name = f"ALE/{find_game(ours['game']).name}-v5"
    if ours["observation"] == "objects":
        return name, space
    return name, gym.spaces.Box(space.low[0], space.high[0], dtype=np.uint8)
