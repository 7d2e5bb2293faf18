"""Atari from RAM on one core: Pong with offline data beside behaviour cloning, Boxing without, Freeway with a script.

    python -m rlpd_gx.experiments.atari_ram run pong --data pong-actions.json.gz --seed 0
    python -m rlpd_gx.experiments.atari_ram run pong-clone --data pong-actions.json.gz --seed 0
    python -m rlpd_gx.experiments.atari_ram run boxing --seed 0
    rlpd-gx collect --env ALE/Freeway-v5 --policy rlpd_gx.experiments.atari_ram:mostly_up --epsilon 0.3 \\
        --episodes 8 --format action-log --out freeway.json.gz
    python -m rlpd_gx.experiments.atari_ram run freeway --data freeway.json.gz --seed 0
    python -m rlpd_gx.experiments.atari_ram run freeway-guarded --data freeway-2.json.gz --seed 0  # of 2 episodes
    python -m rlpd_gx.experiments.atari_ram table

Only freeway-guarded has rules (look-ahead: no car hits the chicken); the others measure the Learner alone. Scores are
of whole games with no-op starts; actions are sampled from the policy.
"""

import json
from pathlib import Path

import numpy as np

from rlpd_gx.trees import Json, Tree

RESULTS = Path("results/atari-ram")
COMMON: Json = {
    "env_kwargs": {"clip_rewards": True},
    "ensemble_size": 3,
    "hidden_sizes": "256,256",
    "batch_size": 128,
    "utd": 0.5,
    "learning_starts": 1_000,
    "sampler": "span",
    "interval": (3,),
    "temperature": 0.05,
    "target_entropy": 0.2,
    "evaluation_episodes": 5,
    "evaluate_every": 10_000,
    "checkpoint_every": 10_000,
    "log_every": 1_000,
}
OFFLINE: Json = {
    "online_ratio": (0.7,), "clone_weight": (0.1, 0.2), "normalise": True,
}  # fmt: skip
# RAM bytes that the networks see, from public RAM maps: Pong's ball across and down, the opponent's paddle and ours;
# Freeway's chicken and its ten cars.
PONG: Json = {"env": "Atari/Pong-objects", "hidden_sizes": "128,128"}
FREEWAY: Json = {"env": "Atari/Freeway-objects", "hidden_sizes": "128,128"}
PONG_VALUE: Json = {
    "steps": 50_000, "warm_start_updates": 10_000, "utd": 1, "interval": (8,), "temperature": 0.01,
}  # fmt: skip
FREEWAY_VALUE: Json = {
    "steps": 100_000, "warm_start_updates": 5_000, "utd": 1, "interval": (5,), "target_entropy": 0.1,
}  # fmt: skip
GUARDED: Json = {
    "rules": "rlpd_gx.envs.atari:Lookahead", "guard": "guardian", "steps": 20_000,
}  # fmt: skip
CLONE: Json = {"actor": "clone", "steps": 0, "warm_start_updates": 20_000}
TASKS: dict[str, Json] = {
    "pong": {**OFFLINE, **PONG, **PONG_VALUE},
    "pong-clone": {**OFFLINE, **PONG, **CLONE},
    "boxing": {"env": "Atari/Boxing-ram", "steps": 100_000, "target_entropy": 0.3},
    "freeway": {**OFFLINE, **FREEWAY, **FREEWAY_VALUE},
    "freeway-guarded": {**OFFLINE, **FREEWAY, **FREEWAY_VALUE, **GUARDED},
    "freeway-clone": {**OFFLINE, **FREEWAY, **CLONE},
}
UP = 1


def mostly_up(observation: Tree) -> int:
    """Freeway's obvious policy."""
    return UP


def run(
    task: str,
    seed: int,
    data: Path | None,
    out: Path,
    name: str | None,
    settings: str,
) -> None:
    """Train (or resume) one run and write results/atari-ram/TASK-SEED.json."""
    from rlpd_gx.experiments.running import finish, write
    from rlpd_gx.loop.configure import configure

    tried = json.loads(settings)
    command = f"python -m rlpd_gx.experiments.atari_ram run {task} --seed {seed}"
    command += f" --settings '{settings}'" if tried else ""
    values = COMMON | TASKS[task] | {"seed": seed, "offline": "" if data is None else str(data)} | tried
    named = f"{name or task}-{seed}"
    _, summary = finish(out / named, lambda: configure("sac", values, task), command)
    write(RESULTS / f"{named}.json", summary)


def table() -> None:
    """Print the results of the runs in results/atari-ram."""
    for file in sorted(RESULTS.glob("*.json")):
        found = json.loads(file.read_text())
        scores = np.array(found["evaluation"]["returns"])
        curve = ", ".join(f"{int(step) // 1000}k: {np.mean(r):.1f}" for step, r in found["curve"].items())
        spread = f"{scores.min():.0f} to {scores.max():.0f}"
        print(f"{file.stem:18} {scores.mean():7.1f} (of {len(scores)} games: {spread}); {curve}")


if __name__ == "__main__":
    from rlpd_gx.experiments.running import TRIALS, command_line

    data = {"type": Path, "help": "action log, where the task has offline data"}
    command_line(__doc__, run, table, {"task": {"choices": TASKS}, "--data": data, **TRIALS})
