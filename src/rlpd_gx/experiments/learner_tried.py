"""What was tried for the discrete Learner, on tuning games and seeds that no reported result uses.

    python -m rlpd_gx.experiments.learner_tried run Assault soft --seed 11
    python -m rlpd_gx.experiments.learner_tried table

Objects and no offline data; no rules (the Learner alone), except that `guarded` variants have RAM rules. One hypothesis
at a time: each variant changes the settings below in one place. Scores are of whole games with sampled actions: all
that ended in the second half of training, and three in each evaluation. `run` adds an entry to
results/learner-tried.json.
"""

import json
import subprocess
from pathlib import Path

import numpy as np

from rlpd_gx.trees import Json

RESULTS = Path("results/learner-tried.json")
GAMES, SEEDS = ("Assault", "Gopher", "DemonAttack"), (11, 12, 13)
COMMON: Json = {
    "ensemble_size": 3,
    "hidden_sizes": "128,128",
    "batch_size": 128,
    "utd": 0.5,
    "learning_starts": 1_000,
    "sampler": "span",
    "interval": (5,),
    "temperature": 0.05,
    "target_entropy": 0.2,
    "normalise": True,
    "evaluation_episodes": 3,
    "checkpoint_every": 1_000_000,
    "log_every": 1_000,
}
LIFE: Json = {"life_loss_ends": True, "clip_rewards": True}
WHOLE: Json = {"life_loss_ends": False, "clip_rewards": True}
GUARDED: Json = {"rules": "rlpd_gx.envs.atari:RamRules", "guard": "guardian"}
VARIANTS: dict[str, Json] = {
    "actor": {"actor": "raw"},
    "actor, whole games": {"actor": "raw", "env_kwargs": WHOLE},
    "soft": {},
    "soft, whole games": {"env_kwargs": WHOLE},
    "soft, 1 step": {"interval": (1,)},
    "soft, 3 steps": {"interval": (3,)},
    "soft, entropy 0.1": {"target_entropy": 0.1},
    "soft, entropy 0.4": {"target_entropy": 0.4},
    "soft, 5 critics": {"ensemble_size": 5},
    "guarded, project": GUARDED,
    "guarded, renormalise": GUARDED | {"backup": "renormalise", "execution": "resample"},
}


def run(game: str, variant: str, seed: int, out: Path, steps: int, settings: str) -> None:
    """Train one run and add its evaluations to results/learner-tried.json."""
    from rlpd_gx.experiments.running import finish
    from rlpd_gx.loop.configure import configure

    if game not in GAMES or seed not in SEEDS:
        raise SystemExit(f"tuning uses the games {', '.join(GAMES)} and the seeds {SEEDS}")
    tried = json.loads(settings)
    values = COMMON | {"env": f"Atari/{game}-objects", "env_kwargs": LIFE, "evaluate_every": steps // 5}
    values |= VARIANTS.get(variant, {}) | tried | {"seed": seed, "steps": steps}
    extra = f" --settings '{settings}'" if tried else ""
    command = f"python -m rlpd_gx.experiments.learner_tried run {game} '{variant}' --seed {seed} --steps {steps}{extra}"
    folder = out / f"{game}-{variant.replace(' ', '-')}-{seed}"
    _, summary = finish(folder, lambda: configure("sac", values, variant), command)
    learning = summary["seconds"]["environment"] + summary["seconds"]["update"]
    entry = {
        "game": game,
        "variant": variant,
        "seed": seed,
        "commit": _commit(),
        "command": command,
        "curve": {step: round(float(np.mean(scores)), 1) for step, scores in summary["curve"].items()},
        "training": late_games(folder, steps // 2),
        "steps_per_second": round(steps / learning, 1),
    }
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    kept = [e for e in known if e["command"] != command]
    RESULTS.write_text(json.dumps([*kept, entry], indent=1) + "\n")


def _commit() -> str:
    """Of the code that ran, where it is a repository."""
    asked = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip()


def late_games(folder: Path, after: int) -> list[float]:
    """Scores of the games that ended in training after a step: more of them than evaluations have."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["return"] for row in rows if row["kind"] == "episode" and row["step"] > after]


def table() -> None:
    """Print results/learner-tried.json, by game and variant: late games of training, and each evaluation."""
    entries = json.loads(RESULTS.read_text())
    for game in GAMES:
        for variant in dict.fromkeys(e["variant"] for e in entries if e["game"] == game):
            runs = [e for e in entries if (e["game"], e["variant"]) == (game, variant)]
            late = [float(np.mean(e["training"])) for e in runs]
            speed = [e["steps_per_second"] for e in runs]
            curves = "; ".join(" ".join(f"{v:g}" for v in e["curve"].values()) for e in runs)
            print(
                f"{game:12} {variant:20} {np.mean(late):6.0f} over {len(runs)} seeds, "
                f"{min(speed):.0f}-{max(speed):.0f} steps/s: {curves}"
            )


if __name__ == "__main__":
    from rlpd_gx.experiments.running import TRIALS, command_line

    command_line(
        __doc__,
        run,
        table,
        {
            "game": {"choices": GAMES},
            "variant": {"help": f"one of {', '.join(VARIANTS)}, or a name for --settings"},
            "--steps": {"type": int, "default": 25_000},
            "--settings": TRIALS["--settings"],
        },
    )
