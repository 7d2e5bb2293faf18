"""Is it fast? All benchmarks, or some, then one table over all that have run.

    python -m bench [PART ...]      guardian learner replay theory lookahead start
    python -m bench --table         the table alone, from the answers of earlier runs

Each part prints its own tables, which are kept in results/bench-PART.txt, and adds its answers to results/bench.json;
the table over all of them is results/bench.txt.
"""

import json
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from bench.timing import ANSWERS, machine
from rich.console import Console
from rich.table import Table

PARTS = ("guardian", "learner", "replay", "theory", "lookahead", "start")


def run(part: str) -> None:
    """One part in a process of its own; what it prints is shown and kept."""
    print(f"\n=== {part}", flush=True)
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", f"bench.{part}"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [
        f"# python -m bench {part}\n",
        f"# {time.strftime('%Y-%m-%d', time.gmtime())}, {machine()}, Python {platform.python_version()}, "
        f"numpy {np.__version__}\n",
    ]
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    if process.wait():
        sys.exit(f"bench.{part} failed")
    lines.append(f"# {time.perf_counter() - start:.0f} seconds\n")
    Path(f"results/bench-{part}.txt").write_text("".join(lines))


def table() -> None:
    """Every target of every part that has run."""
    console = Console(width=140, record=True)
    shown = Table("part", "what", "measured", "target", "", title="Is it fast?", title_justify="left")
    known = json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {}
    for part in PARTS:
        for answer in known.get(part, {}).get("answers", []):
            met = "met" if answer["met"] else "MISSED"
            shown.add_row(part, answer["what"], f"{answer['measured']:g}", answer["target"], met)
        shown.add_section()
    console.print(shown)
    for part in PARTS:
        found = known.get(part)
        text = f"{found['date']}, {found['machine']}, commit {found['commit']}" if found else "not run yet"
        console.print(f"{part}: {text}")
    Path("results/bench.txt").write_text("# python -m bench\n" + console.export_text())


def main() -> None:
    chosen = sys.argv[1:]
    if wrong := [part for part in chosen if part not in (*PARTS, "--table")]:
        sys.exit(f"there is no part {wrong[0]!r}; choose from {', '.join(PARTS)}")
    for part in () if chosen == ["--table"] else chosen or PARTS:
        run(part)
    table()


if __name__ == "__main__":
    main()
