"""Recorded games, played again in our environment."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from rlpd_gx.envs import atari
from rlpd_gx.envs.atari.dying import validate
from rlpd_gx.envs.atari.recording import Recording

PROJECT = Path(__file__).parents[3]


@pytest.mark.shared
@pytest.mark.parametrize("game", ["Pong", "Breakout"])
def test_recorded_games_give_every_reward_and_life_again(game):
    folder = Path(os.environ.get("RLPD_GX_SHARED", PROJECT.parent / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip("the shared data is not here; set RLPD_GX_SHARED to the folder that holds data/")
    log = json.loads(gzip.decompress((folder / f"{game.lower()}-actions.json.gz").read_bytes()))
    env = atari.make(game, noop_max=0, frame_skip=log["kwargs"]["frameskip"])
    index_of = {action.value: index for index, action in enumerate(env.actions)}
    for record in log["episodes"][:1]:
        _, info = env.reset(seed=record["seed"])
        lives, rewards, unsafe, ram = [info["lives"]], [], [], []
        for ale_id in record["ale_actions"]:
            _, reward, terminated, _, info = env.step(index_of[ale_id])
            rewards.append(reward)
            lives.append(info["lives"])
            unsafe.append(info["unsafe_event"])
            ram.append(env.ram())
        assert rewards == record["rewards"]
        assert lives == record["lives"]
        assert terminated == record["terminated"]
        assert info["score"] == sum(record["rewards"])
        assert sum(unsafe) == (sum(r < 0 for r in rewards) if game == "Pong" else lives[0] - lives[-1])
        # These players are good, those the flags were found with were not.
        seen = Recording(np.array(ram), np.array(unsafe), np.zeros(len(ram), int))
        judged = validate(env.game.dying, seen, window=int(env.game.evidence.lag_steps) + 2)
        assert judged.precision == judged.recall == 1
