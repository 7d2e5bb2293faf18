"""`rlpd-gx reproduce` and `rlpd-gx report`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rlpd_gx.cli.arguments import Argument, Option
from rlpd_gx.cli.sweep import Address, EngineName, Jobs, run_sweeps

if TYPE_CHECKING:
    from rlpd_gx.experiments.sweep import Sweep
    from rlpd_gx.report.chapter import Chapter

TITLE = "Results"


def reproduce(
    name: Annotated[
        str,
        Argument(
            "ablation, shield, guards, exploration, atari100k, atari100k-cells, guard-scores, dts-early, dts-late, "
            "dss, backup, constraints, planning, adroit, pixels, or all; several with commas share their runs."
        ),
    ],
    scale: Annotated[
        Literal["smoke", "cpu", "paper"],
        Option(
            "Size of the runs: seconds; minutes to an hour on one core, from objects; the paper's, from pixels."
        ),
    ] = "smoke",
    games: Annotated[list[str] | None, Option("Only these games or tasks.", many=True)] = None,
    seeds: Annotated[int | None, Option("Seeds 0 to N - 1. Default: 5, smoke 1.", min=1)] = None,
    data: Annotated[
        Path | None, Option("Folder with offline data named after games or tasks, such as Pong.json.gz.")
    ] = None,
    out: Annotated[Path | None, Option("Folder for the run folders. Default: runs/SCALE.")] = None,
    results: Annotated[
        Path | None, Option("Folder for the tables NAME.jsonl. Default: results; smoke: in --out.")
    ] = None,
    jobs: Jobs = None,
    engine: EngineName = "processes",
    address: Address = None,
    plan: Annotated[
        bool,
        Option("Only print what is left to do: runs, steps, and core-minutes at the speed of finished runs."),
    ] = False,
) -> None:
    """Run the experiments of the paper: its tables and figures, one run folder and one row for each run.

    Started again after an interruption, it continues. Runs with a row in the tables are not run again. `rlpd-gx report`
    makes the page.
    """
    from rlpd_gx.experiments.experiment import SCALES, Request
    from rlpd_gx.experiments.offline import data_for
    from rlpd_gx.experiments.reproduced import NAMES, find
    from rlpd_gx.experiments.rows import Table
    from rlpd_gx.experiments.sweep import Sweep

    folder = out or Path("runs") / scale
    tables = results or (folder / "results" if scale == "smoke" else Path("results"))
    experiments = [find(one) for one in (NAMES if name == "all" else name.split(","))]
    found = data_for(SCALES[scale], data, folder, record=not plan)
    request = Request(SCALES[scale], found, tuple(games or ()), seeds)
    sweeps = [
        Sweep(one.name, one.plan(request), folder, Table(tables / f"{one.name}.jsonl")) for one in experiments
    ]
    if plan:
        _print_plan(sweeps, tables)
        return
    run_sweeps(sweeps, jobs, engine, address)
    for chapter in _chapters(tables, [one.name for one in experiments]):
        print(f"\n{chapter.title}")
        for verdict in chapter.verdicts:
            print(f"  {verdict.word}: {verdict.claim} ({verdict.reason})")
    print(f"\nTables: {tables}. For the page: rlpd-gx report {tables}")


def _print_plan(sweeps: "list[Sweep]", tables: Path) -> None:
    from rlpd_gx.experiments.budget import budgets, duration
    from rlpd_gx.experiments.reproduced import NAMES
    from rlpd_gx.experiments.rows import Table

    finished = [row for name in NAMES for row in Table(tables / f"{name}.jsonl").rows().values()]
    found = budgets(sweeps, finished)
    print(*found, sep="\n")
    if len(found) > 1:
        runs, steps = sum(one.runs for one in found), sum(one.steps for one in found)
        print(f"together: {runs} runs, {steps:,} steps, {duration(found)}")
    print(
        f"speeds: {len(finished)} rows in {tables}; training with its evaluations, without the measurements after it"
    )


def report(
    folder: Annotated[Path, Argument("Folder with tables of `reproduce`, or a run folder.")],
    out: Annotated[Path | None, Option("File to write. Default: report.html in the folder.")] = None,
    markdown: Annotated[bool, Option("Write Markdown instead: RESULTS.md is made by this.")] = False,
) -> None:
    """Write a page that compares the results of experiments with the paper: tables, figures, commands and verdicts.

    The page needs no network. Lines of a file notes.txt in the folder stand above the verdicts. Given a run folder, it
    writes the report of that run.
    """
    from rlpd_gx.errors import GxError
    from rlpd_gx.experiments.reproduced import NAMES
    from rlpd_gx.files import write_bytes
    from rlpd_gx.report import write_report
    from rlpd_gx.report.results_page import results_markdown, results_page

    if (folder / "config.json").exists():
        if out is not None or markdown:
            raise GxError(f"{folder} is a run folder: its report goes there, without --out or --markdown")
        print(f"Report: {write_report(folder)}")
        return
    chapters = _chapters(folder, NAMES)
    if not chapters:
        raise GxError(f"{folder} holds no table of an experiment (such as ablation.jsonl) and no run")
    target = out or folder / ("RESULTS.md" if markdown else "report.html")
    make = results_markdown if markdown else results_page
    notes = folder / "notes.txt"
    said = notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []
    write_bytes(target, make(TITLE, chapters, [line for line in said if line]).encode())
    print(f"Report: {target}")


def _chapters(folder: Path, names: "tuple[str, ...] | list[str]") -> "list[Chapter]":
    """A chapter for each experiment and scale that has rows."""
    from rlpd_gx.experiments.evidence import Rows
    from rlpd_gx.experiments.reproduced import find
    from rlpd_gx.experiments.rows import Table
    from rlpd_gx.experiments.showing import chapter

    chapters = []
    for name in names:
        rows = Rows(Table(folder / f"{name}.jsonl").rows().values())
        chapters += [chapter(find(name), rows.of(scale=scale)) for scale in rows.labels("scale")]
    return chapters
