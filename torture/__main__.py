"""`python -m torture [--minutes 10] [--only soak kills] [--seed 0] [--out results/torture.json]`."""

import argparse
import json
import platform
import sys
import time
from dataclasses import asdict
from datetime import date
from importlib import import_module
from pathlib import Path

PARTS = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if not p.stem.startswith("_"))


def main() -> int:
    """Run the attacks and print what held. The exit code is 1 if anything broke."""
    parser = argparse.ArgumentParser(prog="python -m torture", description=sys.modules["torture"].__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="time for all parts together")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="run these parts only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the table to this JSON file too")
    options = parser.parse_args()
    rows, start = [], time.time()
    for part in options.only:
        seconds = 60 * options.minutes / len(options.only)
        rows += [(part, row) for row in import_module(f"torture.{part}").run(seconds, options.seed)]
    width = max((len(row.promise) for _, row in rows), default=7)
    print(f"{'part':10} {'promise':{width}} {'tried':>12} {'held':>12} {'broken':>7}")
    for part, row in rows:
        print(
            f"{part:10} {row.promise:{width}} {row.tried:12,} {row.held:12,} {len(row.broken):7,}  {row.note}"
        )
        for line in row.broken[:10]:
            print(f"{'':11}{line}")
    if options.out:
        about = {
            "date": date.today().isoformat(),
            "machine": platform.machine(),
            "python": platform.python_version(),
        }
        about |= {"seed": options.seed, "seconds": round(time.time() - start)}
        table = [{"part": part, **asdict(row)} for part, row in rows]
        options.out.write_text(json.dumps({"about": about, "rows": table}, indent=1) + "\n")
    return int(any(row.broken for _, row in rows))


if __name__ == "__main__":
    sys.exit(main())
