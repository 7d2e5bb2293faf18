"""The actor of a Hopper run and running averages of its parameters, evaluated side by side while it trains.

    python results/hopper/averages.py OUT.jsonl                        a beginner's data, the rule that is reported
    python results/hopper/averages.py OUT.jsonl LADDER.hdf5 SEED       data of beginners to experts, another rule

from the root of the project, with its environment. Acting and learning use the actor. Each evaluation is a line of OUT.
The script was cleaned up after the runs with the ladder (averages-ladder.jsonl: two episodes an evaluation).
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

LADDER = len(sys.argv) > 2
SEED = int(sys.argv[3]) if LADDER else 11
EVERY, FROM, EPISODES = (1_000, 6_000, 2) if LADDER else (1_250, 5_000, 5)
RATES = (0.001, 0.003) if LADDER else (0.001, 0.005, 0.02)  # of the average, for each update of the actor
SETTINGS = {  # examples/hopper.yaml, compiled
    "env": "Hopper-v5", "rules": "rlpd_gx.envs.mujoco:power", "offline": "examples/hopper-v5-early.hdf5",
    "offline_state": "rlpd_gx.envs.mujoco:stored_joint_state", "warm_start_updates": 10_000, "steps": 20_000,
    "batch_size": 128, "utd": 4.0, "ensemble_size": 2, "seed": SEED, "compile": True, "evaluate_every": 0,
    "policy_tau": 1.0,
}  # fmt: skip
if LADDER:
    SETTINGS |= {"offline": sys.argv[2], "rules": "rlpd_gx.envs.mujoco:absolute_power"}


@torch.no_grad()
def run(out: Path, folder: Path) -> None:
    """Train, and write a line at each evaluation."""
    config = configure("rlpd-gx", SETTINGS, "averages.py")
    trainer = Trainer(Task(config), RunFolder.create(folder / "run", config, "averages.py"))
    trainer.begin()
    with torch.enable_grad():
        trainer.warm_start(lambda trainer: None)
    actor = [parameter.detach() for parameter in trainer.learner.policy.actor.parameters()]
    averages = {rate: [parameter.clone() for parameter in actor] for rate in RATES}

    def returns() -> list[int]:
        seed = EVALUATION_SEED + 1_000 * SEED
        played = evaluate(trainer.learner, trainer.evaluation_environment, EPISODES, seed, sample=False)
        return [round(score) for score in played.returns]

    while trainer.step < config.run.steps:
        with torch.enable_grad():
            trainer.train_step()
        for rate, average in averages.items():
            torch._foreach_lerp_(average, actor, rate)
        if trainer.step >= FROM and trainer.step % EVERY == 0:
            row = {"step": trainer.step, "actor": returns()}
            own = [parameter.clone() for parameter in actor]
            for rate, average in averages.items():
                torch._foreach_copy_(actor, average)
                row[f"avg {rate}"] = returns()
            torch._foreach_copy_(actor, own)
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        run(Path(sys.argv[1]), Path(scratch))
