"""What was tried for the discrete Learner, on seeds that no reported result uses.

    rlpd-gx sweep --grid seed=11..13 --grid "sampler=stride|span" --env Atari/Assault-objects --offline planner ...
    python -m rlpd_gx.experiments.tuning add RUN "what is new in it"
    python -m rlpd_gx.experiments.tuning table

`add` puts a finished run into results/learner-tried.jsonl: its command, its last evaluation, and the games that ended
in the second half of training, which are more.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.experiments.rows import commit
from rlpd_gx.files import append_line
from rlpd_gx.loop.run_folder import RunFolder
from rlpd_gx.trees import Json

TRIED = Path("results/learner-tried.jsonl")
GAMES, SEEDS = ("Assault", "Gopher", "DemonAttack"), (11, 12, 13)


def add(path: Path, variant: str) -> None:
    """Put a finished run into the file."""
    folder = RunFolder(path)
    config, result = folder.read("config.json"), folder.read("result.json")
    game = config["env"].removeprefix("Atari/").partition("-")[0]
    if game not in GAMES or config["seed"] not in SEEDS:
        raise GxError(f"{path}: tuning uses the games {', '.join(GAMES)} and the seeds {SEEDS}")
    row = {
        "game": game, "variant": variant, "guard": config["guard"], "seed": config["seed"], "steps": result["steps"],
        "returns": result["evaluation"]["returns"], "late_training_games": _late_games(path, result["steps"] // 2),
        "code": commit(), "command": config["command"],
    }  # fmt: skip
    append_line(TRIED, json.dumps(row))


def _late_games(path: Path, after: int) -> list[float]:
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [row["return"] for row in rows if row["kind"] == "episode" and row["step"] > after]


def table() -> str:
    """For each code, guard and variant: the mean of all games of each run, late training and evaluation together."""
    rows: list[Json] = [json.loads(line) for line in TRIED.read_text().splitlines()]
    lines = []
    for code, steps in dict.fromkeys((row["code"], row["steps"]) for row in rows):
        lines.append(f"{code}, {steps:,} steps")
        here = [row for row in rows if (row["code"], row["steps"]) == (code, steps)]
        for guard, variant in dict.fromkeys((row["guard"], row["variant"]) for row in here):
            runs = [row for row in here if (row["guard"], row["variant"]) == (guard, variant)]
            cells = [_cell([r for r in runs if r["game"] == game]) for game in GAMES]
            lines.append(f"  {guard:9} {variant:20} {'; '.join(filter(None, cells))}")
    return "\n".join(lines)


def _cell(runs: list[Json]) -> str:
    """`Assault 476, 505 (seeds 11, 12)`."""
    if not runs:
        return ""
    runs = sorted(runs, key=lambda row: row["seed"])
    scores = ", ".join(f"{np.mean(row['returns'] + row['late_training_games']):.0f}" for row in runs)
    seeds = ", ".join(str(row["seed"]) for row in runs)
    return f"{runs[0]['game']} {scores} (seed{'s' * (len(runs) > 1)} {seeds})"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("add", help="put a finished run into the file")
    one.add_argument("run", type=Path)
    one.add_argument("variant")
    commands.add_parser("table", help="print what came out")
    asked = parser.parse_args()
    if asked.command == "table":
        print(table())
        return
    try:
        add(asked.run, asked.variant)
    except GxError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
