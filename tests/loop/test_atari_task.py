"""What the Learner sees of an Atari game, online and offline: clipped rewards, and lives as episodes."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlpd_gx.envs.making import make
from rlpd_gx.loop.configure import configure
from rlpd_gx.loop.task import Task

LEARNED, WHOLE = (
    {"life_loss_ends": True, "clip_rewards": True},
    {"life_loss_ends": False, "clip_rewards": False},
)


def _settings(env: Any) -> dict[str, bool]:
    return {name: env.unwrapped.settings[name] for name in LEARNED}


def test_training_clips_rewards_and_ends_lives_and_evaluation_plays_whole_games() -> None:
    task = Task(configure(values={"env": "Atari/Assault-objects"}))
    assert _settings(task.make_env()) == LEARNED
    assert _settings(task.make_env(evaluation=True)) == WHOLE


def test_a_run_may_say_otherwise() -> None:
    task = Task(configure(values={"env": "Atari/Assault-objects", "env_kwargs": {"life_loss_ends": False}}))
    assert _settings(task.make_env()) == {"life_loss_ends": False, "clip_rewards": True}
    assert Task(configure(values={"env": "CartPole-v1"})).env_kwargs == {}


@pytest.mark.parametrize("clipped", [True, False])
def test_offline_rows_are_as_the_online_ones(tmp_path: Path, clipped: bool) -> None:
    env = make("ALE/Assault-v5", frameskip=4, repeat_action_probability=0.0, full_action_space=False)
    ids = [action.value for action in env.unwrapped._action_set]
    _, info = env.reset(seed=0)
    record: dict[str, Any] = {"seed": 0, "ale_actions": [], "rewards": [], "lives": [info["lives"]]}
    terminated, random = False, np.random.default_rng(0)
    while not terminated:
        action = int(random.integers(len(ids)))
        _, reward, terminated, _, info = env.step(action)
        for name, value in (("ale_actions", ids[action]), ("rewards", reward), ("lives", info["lives"])):
            record[name].append(value)
    log = {
        "env_id": "ALE/Assault-v5",
        "kwargs": {"frameskip": 4, "repeat_action_probability": 0.0, "full_action_space": False},
        "episodes": [record | {"terminated": True, "truncated": False}],
    }
    path = tmp_path / "log.json.gz"
    path.write_bytes(gzip.compress(json.dumps(log).encode()))
    kwargs = {} if clipped else WHOLE
    task = Task(
        configure(values={"env": "Atari/Assault-objects", "env_kwargs": kwargs, "offline": str(path)})
    )
    assert task.offline is not None
    line = task.offline.timeline
    lost = np.count_nonzero(np.diff(record["lives"]) < 0)
    assert lost > 1
    assert line.reward.max() == (1 if clipped else 21)
    assert np.count_nonzero(line.terminated) == (lost if clipped else 1)
