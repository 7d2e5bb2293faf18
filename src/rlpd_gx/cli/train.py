"""`rlpd-gx train` and `rlpd-gx evaluate`."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rlpd_gx.cli.arguments import (
    Argument,
    EnvWrappers,
    Option,
    Parser,
    entry,
    paragraphs,
    shown,
    without,
)
from rlpd_gx.config import PRESETS
from rlpd_gx.errors import GxError

if TYPE_CHECKING:
    from rlpd_gx.api import Run
    from rlpd_gx.config import Config
    from rlpd_gx.trees import JsonMapping

FIRST = (
    "env", "rules", "guard", "offline", "steps", "preset", "config", "out", "resume", "from_", "seed", "num_envs",
    "utd", "batch_size", "device", "evaluate_every",
)  # fmt: skip
"""What people set first; `--help-all` shows the rest."""
REASONS = 3  # that are noted after a run, of those for which the rules could not be followed
GROUPS = {"run": "Task and guard", "data": "Replay", "learner": "Learner"}


def train(
    preset: Annotated[str | None, Option(f"Where settings start from: {', '.join(PRESETS)}.")] = None,
    config: Annotated[Path | None, Option("Settings in a YAML, TOML or JSON file.")] = None,
    out: Annotated[Path | None, Option("Folder of the run. Default: a new one in runs/.")] = None,
    resume: Annotated[Path | None, Option("Resume the run in this folder.")] = None,
    from_: Annotated[
        str | None,
        Option("Begin with what RUN had learned at STEP (RUN@STEP; RUN alone: its newest checkpoint)."),
    ] = None,
    env_wrappers: EnvWrappers = None,
    compare: Annotated[
        bool, Option("Also train without a guard, at the same time, with the same budget and seed.")
    ] = False,
    track: Annotated[list[str] | None, Option("Also send the numbers to wandb or trackio.")] = None,
    quiet: Annotated[bool, Option("Print results and errors only.")] = False,
    help: Annotated[bool, Option("Show the settings that people use first.", short="h")] = False,
    help_all: Annotated[bool, Option("Show every setting.")] = False,
    **settings: Any,
) -> None:
    """Train a policy, by default under a guard that executes no forbidden action while an allowed one exists.

    Flags override the config file, which overrides the preset. The run folder holds config, metrics, audit,
    checkpoints, result.json and report.html.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    if env_wrappers:
        given["env_kwargs"] = typed(config, given)[1].get("env_kwargs", {}) | {"wrappers": env_wrappers}
    if help or help_all:
        print(help_text(preset, config, given, everything=help_all))
        return
    from rlpd_gx import api
    from rlpd_gx.settings import COMMAND_LINE, SETTINGS

    watched: Any = {"progress": not quiet, "track": track or ()}
    others = {"preset": preset, "compare": compare or None}
    if resume is not None:
        others |= given | {"config": config, "out": out, "from": from_, "steps": None}
        _leave_out(others, "--resume continues a run with its own settings")
        steps = SETTINGS["steps"].read(given["steps"], COMMAND_LINE) if "steps" in given else None
        _trained(lambda: api.continued(resume, steps, **watched), resume)
        return
    if from_ is not None:
        from rlpd_gx.loop.fork import read_origin

        _leave_out(others, "--from starts from the settings of that run")
        source, step = read_origin(from_)
        out = out or api.free(source.with_name(f"{source.name}-fork"))
        values = typed(config, given)[1]
        fork = partial(api.forked, source, step, out, values, words=COMMAND_LINE, **watched)
        _trained(fork, out)
        return
    chosen = in_force(preset, config, given)
    if not chosen.run.env:
        raise GxError("name the environment, for example --env Hopper-v5")
    if not chosen.run.rules:
        if compare:
            raise GxError("--compare leaves the guard out, and there is none: give --rules")
        if chosen.run.guard != "none":
            raise GxError(f"--guard {chosen.run.guard} needs rules: give --rules module:name")
    out = out or api.new_folder(chosen)
    if compare:
        _compared(chosen, out, quiet)
        return
    _trained(lambda: api.begin(chosen, out, **watched), out)


def in_force(preset: str | None, file: Path | None, given: dict[str, Any]) -> "Config":
    """The settings of a run: flags over file over preset."""
    from rlpd_gx.loop.configure import configure
    from rlpd_gx.settings import COMMAND_LINE

    named, values = typed(file, given)
    return configure(preset or named or "rlpd-gx", values, COMMAND_LINE)


def typed(file: Path | None, given: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The preset that a file names, and the settings of flags over file."""
    from rlpd_gx.settings import COMMAND_LINE, SETTINGS, read_file

    named, values = (None, {}) if file is None else read_file(file)
    return named, values | {name: SETTINGS[name].read(value, COMMAND_LINE) for name, value in given.items()}


def _leave_out(flags: dict[str, Any], why: str) -> None:
    """Raise if any of these was typed."""
    if found := ", ".join(f"--{n.replace('_', '-')}" for n, value in flags.items() if value is not None):
        raise GxError(f"{why}; leave out {found}")


def help_text(preset: str | None, file: Path | None, given: dict[str, Any], *, everything: bool) -> str:
    """Every flag with its value in force, as far as preset, file and flags decide it."""
    from rlpd_gx import guards
    from rlpd_gx.settings import SETTINGS

    now = in_force(preset, file, given)
    ruled = now if now.run.rules else in_force(preset, file, given | {"rules": "module:name"})
    values = {"preset": now.preset}
    for name, setting in SETTINGS.items():
        here, under_rules = shown(setting.value(now)), shown(setting.value(ruled))
        differs = name != "rules" and here != under_rules
        values[name] = f"{here}; with --rules: {under_rules}" if differs else here
    actions = {action.dest: action for action in Parser(train, "train")._actions}
    actions["guard"].help = f"{SETTINGS['guard'].help} One of: {', '.join(guards.NAMES)}."
    head = (
        "usage: rlpd-gx train --env ENV [--rules MODULE:NAME] [options]",
        train.__doc__,
        "In brackets: the value in force with this preset, config file and flags.",
    )
    lines = ["\n\n".join(map(paragraphs, head))]
    groups = {"Run": [name for name in actions if name not in SETTINGS]} | {
        title: [n for n, s in SETTINGS.items() if s.section == section] for section, title in GROUPS.items()
    }
    if not everything:
        rest = [name for name in groups["Run"] if name not in FIRST]
        groups = {"Settings to begin with": [*FIRST], "Also": rest}
    for title, names in groups.items():
        lines += ["", f"{title}:"]
        lines += [entry(actions[name], values.get(name, "")) for name in names]
    return "\n".join(lines)


def _trained(train: Callable[[], "Run"], path: Path) -> None:
    """Train, print the results and write the report; a run that was stopped says how to continue it."""
    from rlpd_gx.loop.train import Stopped
    from rlpd_gx.report import write_report
    from rlpd_gx.report.records import read_run
    from rlpd_gx.report.words import results_text

    try:
        train()
    except Stopped as stop:
        print(f"{stop}; resume with: rlpd-gx train --resume {path}", file=sys.stderr)
        raise SystemExit(128 + stop.number) from None
    found = read_run(path)
    print(results_text(found))
    _note_rules(found.result)
    print(f"Report: {write_report(path)}")


def _note_rules(result: "JsonMapping") -> None:
    """Warn where the rules failed, or never let the policy act."""
    from rlpd_gx.cli.collect import note_all_forbidden
    from rlpd_gx.types import Tally

    tally, steps = Tally.from_dict(result["training"]), result["steps"]
    if not steps:
        return
    note_all_forbidden(tally, steps)
    if tally.fallback < steps:  # else it has said why
        for reason, count in sorted(tally.reasons.items(), key=lambda item: -item[1])[:REASONS]:
            print(f"note: in {count} of {steps} training steps, {reason}; check the rules", file=sys.stderr)


def _compared(chosen: "Config", out: Path, quiet: bool) -> None:
    """The run and its unguarded twin, each as an ordinary run in a process of its own."""
    from rlpd_gx.cli.compare import compare, train_together

    words = without([word for word in sys.argv[1:] if word != "--compare"], ["--out"])
    bare = out.with_name(f"{out.name}-unguarded")
    # what was chosen for the guard would let the twin learn about the rules
    unaware = ["--guard", "none", "--backup", "none"]
    unaware += ["--actor", "raw"] if chosen.learner.actor in ("masked", "projected") else []
    guarded_run = [*words, "--out", str(out)]
    bare_run = [*without(words, unaware[::2]), "--out", str(bare), *unaware]
    train_together({chosen.run.guard: guarded_run, "no guard": bare_run}, quiet=quiet)
    compare([out, bare])


def evaluate(
    run: Annotated[Path, Argument("Folder of a run.")],
    episodes: Annotated[int, Option("Whole episodes to play.", min=1)] = 10,
    seed: Annotated[int, Option("Random seed of the first episode.", min=0)] = 2_000_000,
    sample: Annotated[
        bool | None,
        Option("Sample actions, or take the most likely one. Default: as the run's own evaluations."),
    ] = None,
    metric: Annotated[
        list[str] | None, Option("Further metrics: returns, safety, success, or module:function of your own.")
    ] = None,
) -> None:
    """Play a trained policy under its guard and print returns and counts as JSON."""
    import json

    from rlpd_gx.api import Run

    found = Run(run).evaluate(episodes, seed=seed, sample=sample, metrics=metric or ())
    print(json.dumps(found, indent=2))
