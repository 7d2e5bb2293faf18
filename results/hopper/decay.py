"""A Hopper run whose learning rates fall linearly to 0 from a fraction of the run on, evaluated while it trains.

    python results/hopper/decay.py SEED FROM LADDER.hdf5 OUT.json      (FROM 1: they never fall)

from the root of the project, with its environment. The rule, `absolute_power`, is one that no reported run uses.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch

from rlpd_gx.loop.configure import configure
from rlpd_gx.loop.evaluate import evaluate
from rlpd_gx.loop.run_folder import RunFolder
from rlpd_gx.loop.task import Task
from rlpd_gx.loop.train import EVALUATION_SEED, Trainer

EVERY, FROM, EPISODES = 1_250, 5_000, 5
SETTINGS = {  # those of `reproduce constraints`
    "env": "Hopper-v5", "rules": "rlpd_gx.envs.mujoco:absolute_power", "steps": 20_000, "warm_start_updates": 10_000,
    "offline_state": "rlpd_gx.envs.mujoco:stored_joint_state", "batch_size": 128, "utd": 4.0, "ensemble_size": 2,
    "compile": True, "evaluate_every": 0,
}  # fmt: skip


def run(seed: int, start: float, data: str, folder: Path) -> dict[int, float]:
    """Mean return of each evaluation, by step."""
    config = configure("rlpd-gx", SETTINGS | {"offline": data, "seed": seed}, "decay.py")
    trainer = Trainer(Task(config), RunFolder.create(folder / "run", config, "decay.py"))
    trainer.begin()
    optimisers, rate = trainer.learner.optimisers.values(), config.learner.learning_rate
    for optimiser in optimisers:
        optimiser.learning_rate = torch.tensor(rate)  # one that a compiled graph reads anew
    trainer.warm_start(lambda trainer: None)
    found = {}
    while trainer.step < config.run.steps:
        progress = trainer.step / config.run.steps
        for optimiser in optimisers:
            optimiser.learning_rate.fill_(rate if progress <= start else rate * (1 - progress) / (1 - start))
        trainer.train_step()
        if trainer.step >= FROM and trainer.step % EVERY == 0:
            environment, first = trainer.evaluation_environment, EVALUATION_SEED + 1_000 * seed
            played = evaluate(trainer.learner, environment, EPISODES, first, sample=False)
            found[trainer.step] = round(sum(played.returns) / EPISODES)
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        found = run(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], Path(scratch))
    Path(sys.argv[4]).write_text(json.dumps(found))
