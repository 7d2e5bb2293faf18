"""Run folders written by hand, as large or as hostile as a test needs them."""

import json
import random
from pathlib import Path


def write_run(
    folder: Path,
    *,
    steps=2_000,
    log_every=100,
    episode=50,
    seed=0,
    corrected=0.2,
    audit=True,
    rules=("power",),
    **config,
) -> Path:
    """A finished run with plausible files."""
    draw = random.Random(seed)
    folder.mkdir(parents=True)
    asked = {
        "env": "Hopper-v5",
        "preset": "rlpd-gx",
        "guard": "guardian",
        "rules": "a:b",
        "steps": steps,
        "seed": seed,
    }
    (folder / "config.json").write_text(
        json.dumps(asked | {"num_envs": 1, "command": "rlpd-gx train"} | config)
    )
    rows = []
    for step in range(log_every, steps + 1, log_every):
        losses = {f"column_{i}": draw.gauss(0, 1) for i in range(12)}
        rates = {"corrections_rate": corrected, "forbidden_proposals_rate": corrected, "near_misses_rate": 0.1,
                 "forbidden_executed_rate": 0.0, "inevitable_rate": 0.0}  # fmt: skip
        rows.append({"kind": "train", "step": step, "online_ratio": 0.5, "interval": 3, **losses, **rates})
    for step in range(episode, steps + 1, episode):
        rows.append({"kind": "episode", "step": step - 1, "return": step / 100 + draw.gauss(0, 3), "length": episode,
                     "corrections": int(corrected * episode), "unsafe_events": 0, "env": 0})  # fmt: skip
    rows.append({"kind": "evaluation", "step": steps, "returns": [1.0, 3.0], "mean": 2.0, "lengths": [5, 5]})
    rows.sort(key=lambda row: row["step"])
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    training = {
        "forbidden_executed": 0,
        "inevitable": 0,
        "corrections": int(corrected * steps),
        "unsafe_events": 0,
    }
    result = {"steps": steps, "guard": "guardian", "training": training, "unsafe_events_watched": True}
    (folder / "result.json").write_text(json.dumps(result))
    if audit:
        with (folder / "audit.jsonl").open("w") as file:
            start = {
                "event": "start",
                "rules": list(rules),
                "ungraded": [],
                "fingerprint": "",
                "near_miss": 0.05,
            }
            file.write(json.dumps(start) + "\n")
            for step in range(1, steps + 1):
                if draw.random() < corrected:
                    file.write(json.dumps(correction(step, draw.random(), rules[0])) + "\n")
    return folder


def correction(step: int, distance: float, rule: str = "power", status: str = "projected") -> dict:
    return {"event": "correction", "step": step, "episode": 0, "status": status, "proposed": [0.5, 1.0, -1.0],
            "executed": [0.5, 1.0 - distance, -1.0], "suggestion": [0.5, 1.0 - distance, -1.0], "distance": distance,
            "margins": {rule: -distance}, "executed_margin": 0.0, "binding": [rule], "exact": True}  # fmt: skip
