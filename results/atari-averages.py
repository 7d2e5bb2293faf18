"""A game of tuning under RAM rules: the policy that learned beside its average, the same games for both.

    python results/atari-averages.py GAME SEED OUT.jsonl

from the root of the project, with its environment. 50,000 steps with the settings of `reproduce atari100k`.
"""

import json
import sys
import tempfile
from pathlib import Path

from rlpd_gx.experiments.experiment import ATARI, DRAWN
from rlpd_gx.experiments.reproduced.atari100k import SETTINGS
from rlpd_gx.loop.configure import configure
from rlpd_gx.loop.evaluate import evaluate
from rlpd_gx.loop.run_folder import RunFolder
from rlpd_gx.loop.task import Task
from rlpd_gx.loop.train import EVALUATION_SEED, Trainer

RATE, GAMES = 0.003, 10


def run(game: str, seed: int, folder: Path) -> dict[str, object]:
    """Train, and play the same games with both."""
    values = (
        ATARI | SETTINGS | DRAWN.values | {"env": f"Atari/{game}-objects", "offline": "planner", "seed": seed}
    )
    values |= {
        "steps": 50_000,
        "evaluate_every": 0,
        "evaluation_episodes": 1,
        "policy_tau": RATE,
        "compile": True,
    }
    config = configure("rlpd-gx", values, "atari-averages.py")
    trainer = Trainer(Task(config), RunFolder.create(folder / "run", config, "atari-averages.py"))
    trainer.begin()
    trainer.train(lambda trainer: None)
    learner, row = trainer.learner, {"game": game, "seed": seed, "rate": RATE}
    for name in ("average", "policy"):
        if name == "policy":
            learner.average.load_state_dict(learner.policy.state_dict())
        first = EVALUATION_SEED + 1_000 * seed
        played = evaluate(learner, trainer.evaluation_environment, GAMES, first, sample=True).row()
        row[name] = {key: played[key] for key in ("returns", "steps", "unsafe_events")}
    return row


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch, Path(sys.argv[3]).open("a") as out:
        out.write(json.dumps(run(sys.argv[1], int(sys.argv[2]), Path(scratch))) + "\n")
