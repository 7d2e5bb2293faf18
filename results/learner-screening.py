"""Which settings of the discrete Learner matter? Effects of eleven at once, from the 36 runs of one design.

    python results/learner-screening.py        from the root of the project: prints the effects

results/learner-screening.jsonl has the runs: games of tuning under RAM rules, 30,000 steps, seeds 11 to 13, uncompiled.
`design` plackett-burman: twelve combinations of eleven changes, each in three games, so that every change is on in half
of the runs and effects do not mix with each other (they do mix with what two changes do together). Trying the changes
one by one would have taken 36 runs for an error more than twice as large. `design` combined: some changes together.
`life_cost`, `dropout` and `maps in the network` were patches that are not in the code: rewards of -3 for a lost life;
dropout in the critics; the maps of `Atari/GAME-cells`, but of the five nearest of a kind and not normalised.
`joined30` and `joined50` in commands: `planner-30k` of the package (without part 2 in Gopher), or the same with parts 5
and 6 of results/atari-planner-parts.
"""

import json
from pathlib import Path

import numpy as np

ROWS = Path("results/learner-screening.jsonl")
MEASURES = {
    "score": lambda row: np.mean(row["returns"]),
    "points per step": lambda row: sum(row["returns"]) / row["evaluation_steps"],
    "unsafe events per step": lambda row: row["unsafe_events"] / row["evaluation_steps"],
}


def effects(rows: list[dict], measure) -> dict[str, tuple[float, float]]:
    """Change -> by which share it raises a measure, and its t-value: least squares on logarithms, one level a game."""
    games = sorted({row["game"] for row in rows})
    changes = [*rows[0]["changes"]]
    design = np.array(
        [
            [float(row["game"] == game) for game in games]
            + [1.0 if row["changes"][change] else -1.0 for change in changes]
            for row in rows
        ]
    )
    values = np.log([measure(row) for row in rows])
    found, *_ = np.linalg.lstsq(design, values, rcond=None)
    free = len(rows) - design.shape[1]
    variance = np.sum((values - design @ found) ** 2) / free
    errors = np.sqrt(variance * np.diag(np.linalg.inv(design.T @ design)))
    every = zip(changes, found[len(games) :], errors[len(games) :], strict=True)
    return {change: (float(np.exp(2 * half) - 1), float(half / error)) for change, half, error in every}


if __name__ == "__main__":
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()]
    screened = [row for row in rows if row["design"] == "plackett-burman"]
    found = {name: effects(screened, measure) for name, measure in MEASURES.items()}
    print(f"{'change':44}" + "".join(f"{name:>26}" for name in found))
    for change in screened[0]["changes"]:
        cells = [f"{share:+.0%} (t {t:+.1f})" for share, t in (found[name][change] for name in found)]
        print(f"{change:44}" + "".join(f"{cell:>26}" for cell in cells))
    print("\ncombined: score of 20 games, points and unsafe events per 1,000 steps")
    for row in (row for row in rows if row["design"] == "combined"):
        score, points, events = (measure(row) for measure in MEASURES.values())
        numbers = f"{score:7,.0f} {1000 * points:7,.0f} {1000 * events:6.2f}"
        print(f"{row['game']:12} seed {row['seed']} {numbers}  {', '.join(row['changes'])}")
