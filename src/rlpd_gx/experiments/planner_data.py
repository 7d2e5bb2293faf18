"""The offline sets of the 26 Atari games: `rlpd-gx collect --policy planner`, part by part, and joined.

    python -m rlpd_gx.experiments.planner_data collect runs/planner --jobs 2   # for hours; start it again to resume
    python -m rlpd_gx.experiments.planner_data join runs/planner               # add what is finished to the package
    python -m rlpd_gx.experiments.planner_data table                           # results/atari-planner.txt

Games take turns, so that a collection that is stopped has about as many steps of each game. A part is one file, made by
one command with its own seed; the joined log of a game lists them in `parts`, and those are not collected again.
"""

import argparse
import gzip
import json
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rlpd_gx import files
from rlpd_gx.envs.atari.games import GAMES
from rlpd_gx.envs.atari.offline import FOLDER
from rlpd_gx.trees import Json

PARTS = (2_000, 3_000, 5_000, 10_000, 10_000)  # steps; 30,000 in all
SEED = 100  # of the first part, then 101, ...
TABLE = Path("results/atari-planner.txt")
PACKAGE = FOLDER / "planner-30k"
SHORT = FOLDER / "planner"  # the first two or three parts, as the ablations have them


def main() -> None:
    """One of the commands above."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("collect", "join"):
        command = commands.add_parser(name)
        command.add_argument("parts", type=Path, help="folder of the parts")
        if name == "collect":
            command.add_argument("--jobs", type=int, default=1, help="parts to make at a time (default: 1)")
    commands.add_parser("table")
    chosen = parser.parse_args()
    if chosen.command == "collect" and chosen.jobs < 1:
        parser.exit(2, f"--jobs must be 1 or more, got {chosen.jobs}\n")
    if chosen.command == "join" and not chosen.parts.is_dir():
        parser.exit(2, f"{chosen.parts}: there is no such folder; `collect` makes the parts\n")
    if chosen.command == "table":
        table()
    elif chosen.command == "join":
        join(chosen.parts)
    else:
        collect(chosen.parts, chosen.jobs)


def collect(parts: Path, jobs: int = 1) -> None:
    """Make the parts that are missing, the games in turn, some at a time."""
    missing = [
        _words(game, part, steps, out)
        for part, steps in enumerate(PARTS)
        for game in GAMES
        if not (out := _part(parts, game, part)).exists()
        and SEED + part not in _seeds(_joined(PACKAGE, game))
    ]

    def make(words: list[str]) -> None:
        subprocess.run([sys.executable, "-m", "rlpd_gx", *words], check=True)

    with ThreadPoolExecutor(jobs) as pool:  # each part is a process of its own
        try:
            list(pool.map(make, missing))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def join(parts: Path, into: Path = PACKAGE) -> None:
    """Add to the log of each game the parts that it does not have yet."""
    for game in GAMES:
        log = _joined(into, game)
        paths = {
            part: _part(parts, game, part) for part in range(len(PARTS)) if SEED + part not in _seeds(log)
        }
        new = {part: read(path) for part, path in paths.items() if path.exists()}
        for part, added in new.items():
            log = {
                "env_id": added["env_id"],
                "kwargs": added["kwargs"],
                "parts": [*log["parts"], _facts(game, part, added)],
                "episodes": [*log["episodes"], *added["episodes"]],
            }
        if new:
            compact = json.dumps(log, separators=(",", ":")).replace(".0,", ",").replace(".0]", "]")
            files.write_bytes(into / f"{game}.json.gz", gzip.compress(compact.encode(), 9, mtime=0))


def table() -> None:
    """The sets of the package: steps, score, lost lives, and simulated steps of each game."""
    lines = [
        f"{'game':<15} {'steps':>7} {'games':>6} {'per 1,000 steps: score':>23} {'lives lost':>11} "
        f"{'simulated a step':>17} {'kB':>5}"
    ]
    bytes_in_all = 0
    for path in sorted(PACKAGE.glob("*.json.gz")):
        log, size = read(path), path.stat().st_size
        parts = log["parts"]
        steps = sum(p["steps"] for p in parts)
        lost = sum(
            max(a - b, 0) for e in log["episodes"] for a, b in zip(e["lives"], e["lives"][1:], strict=False)
        )
        lines.append(
            f"{path.name.partition('.')[0]:<15} {steps:>7,} {len(log['episodes']):>6} "
            f"{1000 * sum(p['score'] for p in parts) / steps:>23,.1f} {1000 * lost / steps:>11.2f} "
            f"{sum(p['simulated_steps'] for p in parts) / steps:>17.1f} {size / 1000:>5.0f}"
        )
        bytes_in_all += size
    lines += [f"{bytes_in_all / 1e6:.2f} MB in all. One command for each part:"]
    lines += [
        f"  {part['command']}" for path in sorted(PACKAGE.glob("*.json.gz")) for part in read(path)["parts"]
    ]
    files.write_bytes(TABLE, ("\n".join(lines) + "\n").encode())
    print("\n".join(lines))


def read(path: Path) -> Json:
    """A log as it is written."""
    return dict(json.loads(gzip.decompress(path.read_bytes())))


def _joined(folder: Path, game: str) -> Json:
    """The log of a game in a folder; a new one begins with the short set, if the folder is that of the package."""
    paths = [folder / f"{game}.json.gz"] + ([SHORT / f"{game}.json.gz"] if folder == PACKAGE else [])
    found = [path for path in paths if path.exists()]
    return read(found[0]) if found else {"parts": [], "episodes": []}


def _seeds(log: Json) -> set[int]:
    return {part["seed"] for part in log["parts"]}


def _part(parts: Path, game: str, part: int) -> Path:
    return parts / f"{game}-{part}.json.gz"


def _words(game: str, part: int, steps: int, out: Path) -> list[str]:
    """The command of a part; RAM is the smallest observation to keep meanwhile, and none is in the log."""
    options = {
        "env": f"ALE/{game}-v5",
        "env-kwargs": '{"obs_type": "ram"}',
        "policy": "planner",
        "seed": SEED + part,
        "steps": steps,
        "format": "action-log",
        "out": out,
    }
    return ["collect", *(word for name, value in options.items() for word in (f"--{name}", str(value)))]


def _facts(game: str, part: int, log: Json) -> Json:
    episodes = log["episodes"]
    steps = sum(len(episode["ale_actions"]) for episode in episodes)
    return {
        "command": shlex.join(["rlpd-gx", *_words(game, part, steps, Path(f"{game}-{part}.json.gz"))]),
        "seed": SEED + part,
        "steps": steps,
        "score": sum(sum(episode["rewards"]) for episode in episodes),
        "simulated_steps": log["simulated_steps"],
    }


if __name__ == "__main__":
    main()
