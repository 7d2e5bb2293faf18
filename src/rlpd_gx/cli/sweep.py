"""`rlpd-gx sweep`: every combination of some settings, each an ordinary run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rlpd_gx.cli.arguments import Option
from rlpd_gx.config import PRESETS
from rlpd_gx.errors import GxError

if TYPE_CHECKING:
    from rlpd_gx.experiments.engines import Engine
    from rlpd_gx.experiments.sweep import Sweep

Jobs = Annotated[
    int | None,
    Option("Runs at a time, one thread each. Default: 2; with Ray, as many as there is room for.", min=1),
]
EngineName = Annotated[
    Literal["processes", "ray"], Option("Processes of this machine, or tasks of a Ray cluster.")
]
Address = Annotated[
    str | None, Option("Ray cluster to connect to, such as auto; run folders must be on a shared path.")
]


def sweep(
    grid: Annotated[
        list[str],
        Option(
            "Settings and their values: seed=0..4 guard=guardian,none; values that hold commas are separated by |.",
            many=True,
        ),
    ],
    out: Annotated[Path, Option("Folder for the run folders; the same one continues a sweep.")] = Path(
        "runs/sweep"
    ),
    table: Annotated[Path | None, Option("Table of finished runs. Default: results.jsonl in --out.")] = None,
    jobs: Jobs = None,
    engine: EngineName = "processes",
    address: Address = None,
    preset: Annotated[str, Option(f"Where settings start from: {', '.join(PRESETS)}.")] = "rlpd-gx",
    **settings: Any,
) -> None:
    """Train every combination of the grid, several runs at a time; further flags are those of `rlpd-gx train`.

    Started again after an interruption, it continues: finished runs are kept, others are resumed from their
    checkpoints. Each finished run is one line of the table.
    """
    from rlpd_gx.experiments.plan import grid as planned
    from rlpd_gx.experiments.rows import Table
    from rlpd_gx.experiments.sweep import Sweep
    from rlpd_gx.settings import COMMAND_LINE, SETTINGS

    given = {n: SETTINGS[n].read(value, COMMAND_LINE) for n, value in settings.items() if value is not None}
    plan = planned(grid, given, preset)
    for one in plan:
        if not one.config.run.env:
            raise GxError("name the environment, for example --env Hopper-v5")
    file = table or out / "results.jsonl"
    run_sweeps([Sweep(out.name, plan, out, Table(file))], jobs, engine, address)
    rows = Table(file).rows()
    for one in plan:
        print(f"{one.name}  score {rows[one.fingerprint]['score']:.2f}")
    print(f"Table: {file}")


def run_sweeps(sweeps: "list[Sweep]", jobs: int | None, engine: str, address: str | None) -> None:
    """Run them with the chosen engine; runs that failed are one sentence each and exit code 1."""
    import signal
    import sys

    from rlpd_gx.experiments.sweep import run

    if address is not None and engine != "ray":
        raise GxError("--address is of a Ray cluster: give --engine ray too")
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        failed = run(sweeps, _engine(jobs, engine, address))
    except KeyboardInterrupt:
        print("stopped; the same command continues the sweep", file=sys.stderr)
        raise SystemExit(130) from None
    for sentence in failed:
        print(f"rlpd-gx: {sentence}", file=sys.stderr)
    if failed:
        raise SystemExit(1)


def _engine(jobs: int | None, engine: str, address: str | None) -> "Engine":
    from rlpd_gx.experiments import engines

    return engines.Ray(address, jobs) if engine == "ray" else engines.Processes(jobs or 2)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
