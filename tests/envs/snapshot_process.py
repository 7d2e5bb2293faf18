"""Rolls environments on; run as a program it does so in a fresh process, from snapshots in files."""

import json
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np

from rlpd_gx.envs import making, snapshots

STEPS = 150


def make(env_id: str) -> gym.Env:
    """With a short time limit, so that episodes end within the steps compared."""
    return making.make(env_id) if env_id.startswith("Probe/") else making.make(env_id, max_episode_steps=60)


def roll(env: gym.Env, seed: int, steps: int) -> dict[str, np.ndarray]:
    """What the environment answers to actions drawn from this seed, across the ends of episodes."""
    generator = np.random.default_rng(seed)
    answers: dict[str, list] = {"observation": [], "reward": [], "terminated": [], "truncated": []}
    for _ in range(steps):
        if isinstance(env.action_space, gym.spaces.Discrete):
            action = int(generator.integers(env.action_space.n))
        else:
            low, high = env.action_space.low, env.action_space.high
            action = generator.uniform(low, high).astype(env.action_space.dtype)
        observation, reward, terminated, truncated, _ = env.step(action)
        answers["observation"].append(observation)
        answers["reward"].append(reward)
        answers["terminated"].append(terminated)
        answers["truncated"].append(truncated)
        if terminated or truncated:
            answers["observation"].append(env.reset()[0])
    return {name: np.array(column) for name, column in answers.items()}


def write(path: Path, snapshot: dict) -> None:
    """Arrays to npz, the rest to JSON: neither can hold anything else."""
    arrays = {}

    def without_arrays(part, name):
        if isinstance(part, np.ndarray):
            arrays[name] = part
            return {"array": name}
        if isinstance(part, dict):
            return {key: without_arrays(value, f"{name}/{key}") for key, value in part.items()}
        return part

    path.with_suffix(".json").write_text(json.dumps(without_arrays(snapshot, "")))
    np.savez(path.with_suffix(".npz"), allow_pickle=False, **arrays)


def read(path: Path) -> dict:
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as arrays:

        def with_arrays(part):
            if isinstance(part, dict):
                if part.keys() == {"array"}:
                    return arrays[part["array"]]
                return {key: with_arrays(value) for key, value in part.items()}
            return part

        return with_arrays(json.loads(path.with_suffix(".json").read_text()))


def main(folder: Path) -> None:
    for path in sorted(folder.glob("*.json")):
        env = make(path.stem.partition("@")[0].replace("_", "/"))
        snapshots.restore(env, read(path))
        np.savez(folder / f"{path.stem}.answers.npz", **roll(env, 1, STEPS))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
