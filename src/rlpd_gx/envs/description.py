"""What the loop needs of an environment beyond its spaces, so that it names no task."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import gymnasium as gym
import numpy as np

from rlpd_gx.envs.making import ATARI
from rlpd_gx.errors import GxError
from rlpd_gx.rules import Rule
from rlpd_gx.trees import JsonMapping, Tree, named_leaves


@dataclass(frozen=True)
class Description:
    """How an environment is evaluated, and how its data is stored."""

    training_kwargs: JsonMapping = field(default_factory=dict)
    """Options for training, unless the run says otherwise; in Atari rewards are clipped and a lost life is terminal."""
    evaluation_kwargs: JsonMapping = field(default_factory=dict)
    """Options for evaluations; Atari scores are unclipped and of whole games."""
    sample_in_evaluation: bool = False
    """Whether evaluations sample the policy instead of taking its mode."""
    reports_unsafe_events: bool = False
    """Whether `info["unsafe_event"]` is in every step, also without rules."""
    replay_options: Mapping[str, str] = field(default_factory=lambda: {"observation": "ram"})
    """The observation that action logs are replayed into, as the format's options."""
    replayed_kwargs: tuple[str, ...] = ()
    """Options of the environment that a replay of action logs applies too."""
    offline_sets: Mapping[str, Path] = field(default_factory=dict)
    """Datasets that come with the package, by the name that `--offline` gives them."""
    stricter: Callable[[Rule, float], Rule] = Rule.stricter
    """A rule with its threshold moved inwards, for margin scans."""


def describe(env_id: str) -> Description:
    """The description of an environment by its name."""
    ours = ATARI.fullmatch(env_id)
    if ours is None:
        return Description()
    from rlpd_gx.envs.atari.offline import sets_of
    from rlpd_gx.envs.atari.stricter import stricter

    clipped_lives = {"life_loss_ends": True, "clip_rewards": True}
    return Description(
        clipped_lives,
        dict.fromkeys(clipped_lives, False),
        sample_in_evaluation=True,
        reports_unsafe_events=True,
        replay_options={"observation": ours["observation"], "table": ours["game"]},
        replayed_kwargs=tuple(clipped_lives),
        offline_sets=sets_of(ours["game"]),
        stricter=stricter,
    )


def game_of(env_id: str) -> str | None:
    """The Atari game by the name of its table; None for other environments."""
    ours = ATARI.fullmatch(env_id)
    if ours is None:
        return None
    from rlpd_gx.envs.atari.games import find_game

    return find_game(ours["game"]).name


def learner_space(space: gym.Space) -> gym.Space:
    """The observation space as Learner and replay buffer see it: a tuple or nested dict becomes one flat dict."""
    if not isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        return space
    leaves = named_leaves(_as_tree(space))
    for name, leaf in leaves.items():
        if leaf.shape is None or leaf.dtype is None:
            raise GxError(
                f"the Learner reads numbers, categories and dicts or tuples of them; {name!r} is {leaf}"
            )
    return gym.spaces.Dict(leaves)


def learner_view(observation: Tree) -> Tree:
    """An observation as Learner and replay buffer see it."""
    return named_leaves(observation) if isinstance(observation, Mapping | tuple) else observation


def _as_tree(space: gym.Space) -> Tree:
    if isinstance(space, gym.spaces.Dict):
        return {name: _as_tree(part) for name, part in space.spaces.items()}
    return tuple(_as_tree(part) for part in space.spaces) if isinstance(space, gym.spaces.Tuple) else space


def stored_as(env_id: str, space: gym.Space) -> tuple[str, gym.Space]:
    """Name and observation space of an environment's data: our Atari games are stored as ale-py's, frame by frame."""
    game = game_of(env_id)
    if game is None:
        return env_id, space
    assert isinstance(space, gym.spaces.Box)
    name = f"ALE/{game}-v5"
    if env_id.endswith(("-objects", "-cells")):
        return name, space
    return name, gym.spaces.Box(space.low[0], space.high[0], dtype=np.uint8)
