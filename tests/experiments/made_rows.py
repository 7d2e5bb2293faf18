"""Rows as finished runs would leave them, with numbers of our choice: for tests of verdicts and pages."""

import json

import numpy as np

from rlpd_gx.experiments.experiment import SCALES, Request
from rlpd_gx.experiments.reproduced import find
from rlpd_gx.experiments.rows import CURVES, changed

TASKS = {"constraints": ("Hopper",), "adroit": ("pen",)}  # the others are of Atari games
VERSIONS = {"python": "3.11.7", "rlpd-gx": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6"}


def made_row(planned, experiment, score, chance):
    """A row with this mean score."""
    steps = [1000 * i for i in range(1, 21)]

    def curve(start, end):
        return [[s, float(start + (end - start) * s / steps[-1] + 0.05 * chance.normal())] for s in steps]

    trained = min(steps[-1], planned.config.run.steps)  # 0 where it only clones
    counts = {"steps": trained, "corrections": 100, "unsafe_events": 5, "forbidden_proposals": 120}
    survival = [[0.0, 1.0], [100.0, 0.7], [300.0, 0.4 + 0.3 * chance.random()]]
    return {
        "experiment": experiment, "fingerprint": planned.fingerprint, **planned.labels, "preset": planned.preset,
        "settings": changed(planned.config), "command": planned.command, "score": score, "returns": [score] * 10,
        "success_rate": 0.5, "curve": curve(0.2 * score, score),
        "curves": {name: curve(1.0, 0.2) for name in CURVES},
        "training": counts, "evaluation": counts, "unsafe_events_watched": True,
        "outside": {w: {"executed": steps[-1], "violations": 0} for w in ("training", "evaluation")},
        "enforces": planned.config.run.guard != "none", "simulated_steps": 0, "rules_fingerprint": "abc",
        "seconds": 600.0, "commit": "123456789abc", "versions": VERSIONS, "machine": "a processor, 2 cores",
        "date": "2026-11-17",
        "measured": {
            "collapse": {"collapse_share": float(chance.random())},
            "ttfv": {f"ttfv_restricted_mean_{w}_guard": 500 * float(chance.random()) for w in ("with", "without")}
            | {"ttfv_median_with_guard": None, "ttfv_followed_with_guard": 2_000, "horizon": 12_000},
            "exploration": {"step": steps, "coverage": [10 * s**0.5 for s in steps], "visitation_entropy": [4.0] * 20},
            "novelty": {"action_novelty_rate": 0.1 * float(chance.random())},
            "support-kl": {"support_kl": 0.5 * float(chance.random())},
            "margin-scan": {"delta": [0, 1, 2, 4], "allowed_share": [1.0, 0.8, 0.6, 0.2 + 0.2 * chance.random()]},
            "horizons": {"horizon": [100, 400, 1600], "return": [1.0, 3.0, 4.0 + chance.random()]},
            "rlpd_gx.experiments.reproduced.guards:survival": {"with_guard": survival, "without_guard": survival},
        },
    }  # fmt: skip


def made_rows(name, score, *, seeds=5, games=()):
    """Rows of every run of an experiment; `score(game, variant)` is the mean of its seeds."""
    chance = np.random.default_rng(0)
    data = {"adroit": "demonstrations.hdf5"}.get(name, "")
    request = Request(SCALES["cpu"], lambda task: data, games, seeds)
    rows = []
    for planned in find(name).plan(request):
        middle = score(planned.labels["game"], planned.labels["variant"])
        rows.append(made_row(planned, name, middle + 0.02 * abs(middle) * chance.normal(), chance))
    return rows


def write(folder, name, rows):
    """A table of these rows."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
