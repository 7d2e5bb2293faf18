"""SB3's SAC under our guard and without one, in the tasks of `rlpd-gx reproduce constraints`, at equal steps.

    python results/sb3/sac.py TASK SEED GUARD OUT.jsonl        GUARD: guarded or free

from the root of the project, with its environment; some minutes a run on one core. SAC has SB3's own settings and no
offline data. Evaluations are those of `constraints`: 10 episodes every 2,500 steps, 20 at the end, mean actions.
Violations are counted below the guard. A run adds one line to OUT.
"""

import json
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import SAC

from rlpd_gx.experiments.outside import Counter, counting
from rlpd_gx.experiments.reproduced.constraints import TASKS
from rlpd_gx.experiments.rows import commit, machine
from rlpd_gx.files import append_line
from rlpd_gx.guardian.named import guarded
from rlpd_gx.loop.train import EVALUATION_SEED

STEPS, EVERY, EPISODES = 20_000, 2_500, 10


def made(task: str, guard: str) -> tuple[gym.Env, Counter]:
    """The environment, and what counts the actions that reach it."""
    name, rules = TASKS[task]
    counter = counting(gym.make(name), rules)
    assert isinstance(counter, Counter)
    return (guarded(counter, rules) if guard == "guarded" else counter), counter


def returns(model: SAC, env: gym.Env, episodes: int, seed: int) -> list[float]:
    """Of whole episodes with the mean action."""
    found = []
    for episode in range(episodes):
        observation, _ = env.reset(seed=seed + episode)
        total, over = 0.0, False
        while not over:
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
        found.append(round(total, 1))
    return found


def run(task: str, seed: int, guard: str) -> dict:
    """Train and evaluate."""
    torch.set_num_threads(1)
    (env, training), (apart, evaluating) = made(task, guard), made(task, guard)
    model, curve = SAC("MlpPolicy", env, seed=seed, device="cpu"), []
    for step in range(EVERY, STEPS + 1, EVERY):
        model.learn(EVERY, reset_num_timesteps=step == EVERY)
        episodes = EPISODES * (2 if step == STEPS else 1)
        curve.append([step, returns(model, apart, episodes, EVALUATION_SEED + 1_000 * seed)])
    return {
        "task": task, "seed": seed, "guard": guard, "curve": curve,
        "last_five": round(float(np.mean([np.mean(found) for _, found in curve[-5:]])), 1),
        "training": training.counts(), "evaluation": evaluating.counts(), "seconds": round(time.process_time()),
        "commit": commit(), "machine": machine(),
    }  # fmt: skip


if __name__ == "__main__":
    append_line(Path(sys.argv[4]), json.dumps(run(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
