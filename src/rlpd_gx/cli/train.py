"""`rlpd-gx train` and `rlpd-gx evaluate`."""

import inspect
import itertools
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from rlpd_gx.errors import GxError

PANELS = {"run": "Task, guard and length", "data": "Batches", "learner": "Learner"}
Out = Annotated[Path | None, typer.Option(help="Folder of the run (if not given: a new one in runs/).")]
Preset = Annotated[
    str | None,
    typer.Option(
        help="rlpd-gx, paper, rlpd, sac, full, no-guardian, no-guarded-backup, no-dts, no-dss, clone (default rlpd-gx)."
    ),
]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="Settings in a YAML, TOML or JSON file.")]
Resume = Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")]
Compare = Annotated[
    bool, typer.Option("--compare", help="Then train with the same budget without a guard, for comparison.")
]


def train(
    out: Path | None,
    preset: str | None,
    config: Path | None,
    resume: Path | None,
    compare: bool,
    **flags: Any,
) -> None:
    """Train a policy that never executes a forbidden action.

    Flags come before the file, the file before the preset. Every run folder holds its config, metrics, audit,
    checkpoints, result.json and report.html.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    if resume is not None:
        others = given | {"preset": preset, "config": config, "out": out, "compare": compare or None}
        if said := ", ".join(f"--{n.replace('_', '-')}" for n, value in others.items() if value is not None):
            raise GxError(f"--resume goes on with that run as it was begun; leave out {said}")
        _finish([_run(resume, None)], [resume])
        return
    settings = _config(preset, config, given)
    if not settings.run.env:
        raise GxError("say which environment: --env Hopper-v5, for example")
    out = out or _new_folder(settings)
    runs = {out: settings}
    if compare:
        if not settings.run.rules:
            raise GxError("--compare leaves the guard out, and there is none: give --rules")
        from rlpd_gx import guards
        from rlpd_gx.settings import with_values

        bare = with_values(settings, {"guard": "none", **guards.find("none").learner}, "--compare")
        runs[out.with_name(f"{out.name}-unguarded")] = bare
    _finish([_run(path, config) for path, config in runs.items()], list(runs))


def _new_folder(settings: Any) -> Path:
    """A folder in runs/ that does not exist yet."""
    environment = settings.run.env.rpartition(":")[2].replace("/", "-")
    name = f"{environment}-{settings.preset}-seed{settings.run.seed}"
    candidates = (Path("runs") / (name if n == 1 else f"{name}-{n}") for n in itertools.count(1))
    return next(path for path in candidates if not path.exists())


def _config(preset: str | None, file: Path | None, given: dict[str, Any]) -> Any:
    from rlpd_gx.loop.configure import configure
    from rlpd_gx.settings import read_file

    named, values = (None, {}) if file is None else read_file(file)
    name = preset or named or "rlpd-gx"
    if file is not None:
        configure(name, values, str(file))  # so that an error in the file is said to be there
    return configure(name, values | given, "command line")


def _run(path: Path, config: Any) -> dict[str, Any]:
    from rich.console import Console

    from rlpd_gx.loop.resume import Saver, resume
    from rlpd_gx.loop.run_folder import RunFolder
    from rlpd_gx.loop.task import Task
    from rlpd_gx.loop.train import Stopped, Trainer
    from rlpd_gx.loop.watchers import ProgressLine

    console = Console(stderr=True)
    if config is None:
        trainer, save, notes = resume(path)
        for note in notes:
            console.print(f"note: {note}", soft_wrap=True)
        console.print(f"going on from step {trainer.step:,}")
    else:
        task = Task(config)
        _check(task)
        folder = RunFolder.create(path, config, shlex.join(["rlpd-gx", *sys.argv[1:]]))
        trainer, save = Trainer(task, folder), Saver(folder)
        trainer.begin()
        save(trainer)
    run = trainer.task.config.run
    line = ProgressLine(console, run.steps, trainer.step)
    trainer.watchers = (line, *_tensorboard(trainer))
    try:
        with line:
            return trainer.train(save)
    except Stopped as stop:
        console.print(f"{stop}; go on with: rlpd-gx train --resume {path}", soft_wrap=True)
        raise typer.Exit(128 + stop.number) from None


def _finish(results: list[dict[str, Any]], paths: list[Path]) -> None:
    """Reports, and the table of all results."""
    from rich.console import Console

    from rlpd_gx.report import write_report

    console = Console()
    console.print(summary(results))
    for path in paths:
        console.print(f"Report: {write_report(path)}", soft_wrap=True)


def _check(task: Any) -> None:
    """Everything that can be wrong with the request is said before a folder is made."""
    config = task.config
    learner = task.learner()
    task.sampler(learner)
    task.dss()
    task.dts()
    if task.offline is None and (config.run.warm_start_updates or config.learner.actor == "clone"):
        raise GxError(
            "cloning and warm_start_updates learn from offline data, and there is none; give --offline"
        )


def _tensorboard(trainer: Any) -> tuple[Any, ...]:
    from importlib.util import find_spec

    from rlpd_gx.loop.watchers import TensorBoard

    if find_spec("tensorboard") is None:
        return ()
    return (TensorBoard(trainer.folder.path, trainer.step),)


def summary(results: list[dict[str, Any]]) -> Any:
    """The results of runs as a table."""
    from rich.table import Table

    first = results[0]
    table = Table(title=f"{first['env']}, {first['preset']}, seed {first['seed']}", title_justify="left")
    for name in ("guard", "phase", "return", "steps", "corrected", "forbidden", "unsafe"):
        table.add_column(name, justify="left" if name in ("guard", "phase") else "right")
    for result in results:
        for phase in ("training", "evaluation"):
            counts = result[phase]
            score = f"{counts['mean']:.1f}" if "mean" in counts else ""
            moved = counts["corrections"] if result["guard"] == "guardian" else 0
            cells = [counts["steps"], moved, counts["forbidden_executed"], counts["unsafe_events"]]
            table.add_row(result["guard"], phase, score, *(f"{cell:,}" for cell in cells))
    table.caption = (
        "corrected: by the guard; forbidden: executed although the rules forbid it; unsafe: events seen"
    )
    return table


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    episodes: Annotated[int, typer.Option(min=1, help="Whole episodes to play.")] = 10,
    seed: Annotated[int, typer.Option(help="Of the first episode.")] = 2_000_000,
    sample: Annotated[
        bool | None,
        typer.Option("--sample/--mode", help="Draw actions, or take the likeliest (the run's own)."),
    ] = None,
) -> None:
    """Play a trained policy under its guard and print returns and counts."""
    import json

    from rich.console import Console

    from rlpd_gx.envs.description import describe
    from rlpd_gx.loop.evaluate import evaluate as play
    from rlpd_gx.loop.resume import load_learner
    from rlpd_gx.loop.run_folder import RunFolder

    learner, environments = load_learner(run)
    if sample is None:
        sample = describe(RunFolder.open(run)[1].run.env).sample_in_evaluation
    result = play(learner, environments, episodes, seed, sample=sample).row()
    Console().print_json(json.dumps(result))


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one flag for every setting of a run."""
    from rlpd_gx.settings import SETTINGS

    def option(name: str, annotation: Any) -> inspect.Parameter:
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    parameters = [
        option("out", Out), option("preset", Preset), option("config", ConfigFile), option("resume", Resume),
        inspect.Parameter("compare", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Compare),
    ]  # fmt: skip
    for field in SETTINGS.values():
        default = field.default if field.default not in ("", (), {}) else None
        shown = f"{field.help}" + ("" if default is None else f" (default {_shown(default)})")
        info = typer.Option(help=shown, rich_help_panel=PANELS[field.section], show_default=False)
        parameters.append(option(field.name, Annotated[_flag_type(field.type) | None, info]))

    def flagged(**flags: Any) -> None:
        command(**flags)

    flagged.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flagged.__annotations__ = {p.name: p.annotation for p in parameters}
    flagged.__doc__, flagged.__name__ = command.__doc__, command.__name__
    return flagged


def _flag_type(kind: Any) -> Any:
    if get_origin(kind) is Literal:
        return kind
    if get_origin(kind) is tuple:
        return list[str] if get_args(kind)[0] is str else str
    return kind if kind in (int, float, bool) else str


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
