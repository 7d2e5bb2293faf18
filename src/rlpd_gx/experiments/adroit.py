"""Adroit hand: RLPD on demonstrations beside behaviour cloning of them.

    python -m rlpd_gx.experiments.adroit run pen --data adroit-pen-mixed.hdf5 --seed 0
    python -m rlpd_gx.experiments.adroit run pen-clone --data adroit-pen-mixed.hdf5 --seed 0
    python -m rlpd_gx.experiments.adroit run door --data adroit-door-expert.hdf5 --seed 0
    python -m rlpd_gx.experiments.adroit table

There are no rules here: these runs measure the Learner alone. An episode of 200 steps succeeds if the environment
reports success in any of them (demonstrations are counted likewise); the table also has the stricter "for more than
20 steps".
"""

import json
from pathlib import Path

import numpy as np

from rlpd_gx.trees import Json

RESULTS = Path("results/adroit")
COMMON: Json = {
    "ensemble_size": 2,
    "target_subset": 2,
    "batch_size": 128,
    "utd": 2,
    "clone_weight": (0.1, 1000.0),  # demonstrations are few and good: without cloning they are unlearned
    "warm_start_updates": 10_000,
    "steps": 20_000,
    "evaluate_every": 5_000,
    "evaluation_episodes": 25,
}
CLONE: Json = {
    "actor": "clone",
    "steps": 0,
    "warm_start_updates": 20_000,
    "utd": 1,
}
TASKS: dict[str, Json] = {
    "pen": {"env": "AdroitHandPen-v1"},
    "pen-clone": {"env": "AdroitHandPen-v1"} | CLONE,
    "door": {"env": "AdroitHandDoor-v1"},
    "door-clone": {"env": "AdroitHandDoor-v1"} | CLONE,
}


def run(
    task: str,
    data: Path,
    seed: int,
    out: Path,
    name: str | None,
    settings: str,
) -> None:
    """Train (or resume) one run and write results/adroit/TASK-SEED.json."""
    from rlpd_gx.experiments.running import finish, write
    from rlpd_gx.loop.configure import configure

    command = f"python -m rlpd_gx.experiments.adroit run {task} --data {data.name} --seed {seed}"
    tried = json.loads(settings)
    command += f" --settings '{settings}'" if tried else ""
    values = COMMON | TASKS[task] | {"seed": seed, "offline": str(data)} | tried
    named = f"{name or task}-{seed}"
    _, summary = finish(out / f"adroit-{named}", lambda: configure("rlpd-gx", values, task), command)
    write(RESULTS / f"{named}.json", summary)


def table() -> None:
    """Print the results of the runs in results/adroit."""
    for file in sorted(RESULTS.glob("*.json")):
        found = json.loads(file.read_text())
        steps, returns = (np.array(found["evaluation"][name]) for name in ("success_steps", "returns"))
        print(
            f"{file.stem:14} success {(steps > 0).mean():.0%}, for more than 20 steps {(steps > 20).mean():.0%} "
            f"(of {len(steps)} episodes); return {returns.mean():.0f}"
        )


if __name__ == "__main__":
    from rlpd_gx.experiments.running import TRIALS, command_line

    data = {"type": Path, "required": True, "help": "demonstrations"}
    command_line(__doc__, run, table, {"task": {"choices": TASKS}, "--data": data, **TRIALS})
