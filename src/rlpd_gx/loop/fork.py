"""A new run that goes on from a checkpoint of another one, with other settings."""

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlpd_gx import settings
from rlpd_gx.config import Config
from rlpd_gx.errors import GxError, first_line
from rlpd_gx.loop.checkpoint import Checkpoints
from rlpd_gx.loop.configure import reconfigure
from rlpd_gx.loop.guard_identity import GuardIdentity
from rlpd_gx.loop.resume import Saver, refuse_other_rules, refuse_other_settings, restore
from rlpd_gx.loop.run_folder import RunFolder
from rlpd_gx.loop.task import Counting, Task
from rlpd_gx.loop.train import Trainer
from rlpd_gx.replay.segments import Segments

KEPT = (
    "env", "env_kwargs", "rules", "rules_state", "num_envs", "hidden_sizes", "ensemble_size", "layer_norm", "normalise",
    "support",
)  # fmt: skip
"""Settings that a fork keeps: the experience and the networks are made of them."""


def read_origin(text: str) -> tuple[Path, int | None]:
    """`RUN@STEP`, or `RUN` for its newest checkpoint."""
    run, at, step = text.rpartition("@")
    if not at:
        return Path(text), None
    digits = step.replace(",", "").replace("_", "")
    if not run or not digits.isdigit():
        raise GxError(f"--from takes RUN or RUN@STEP, such as runs/first@10000, not {text!r}")
    return Path(run), int(digits)


def fork(
    source: Path,
    step: int | None,
    out: Path,
    values: Mapping[str, Any],
    *,
    words: str,
    command: str,
    counting: Counting | None = None,
) -> tuple[Trainer, Saver, list[str]]:
    """A trainer in a new folder that is what the one of `source` was at a step, with other settings.

    Curves and counts begin with those of the source. With another seed, episodes start over and nothing random is
    shared. `words` names the source of the settings in errors.
    """
    folder, config = RunFolder.open(source)
    loaded = Checkpoints(folder.checkpoints).load(step=step)
    state = loaded.state
    refuse_other_settings(folder, state)
    changed = reconfigure(config, values, words)
    then, now = settings.flat(config), settings.flat(changed)
    if kept := [settings.SETTINGS[name].flag for name in KEPT if then[name] != now[name]]:
        raise GxError(f"a fork keeps the task and the networks of {source}; leave out {', '.join(kept)}")
    if changed.run.steps <= loaded.step:
        raise GxError(f"{source} was at step {loaded.step:,} then; give more --steps than that")
    task = Task(changed, counting)
    if task.example.actions.discrete and (then["actor"] == "auto") != (now["actor"] == "auto"):
        raise GxError(
            f"{source} was trained with --actor {then['actor']}, whose networks differ; leave out --actor"
        )
    other_guard = changed.run.guard != config.run.guard
    if other_guard:  # the rules must be the same, the guard need not
        state["guard"].pop("guard", None)
        now_guard = GuardIdentity.of_task(task).fingerprints
        state["guard"] |= {name: value for name, value in now_guard.items() if name == "guard"}
    refuse_other_rules(source, task, state)
    there = set(out.iterdir()) if out.is_dir() else None
    made = RunFolder.create(out, changed, command, forked_from=f"{source}@{loaded.step}")
    try:
        trainer, saver, notes = _continued(made, task, folder, config, state)
        if "temperature" in values:
            with torch.no_grad():
                trainer.learner.log_temperature.fill_(math.log(changed.learner.temperature))
        if changed.run.seed != config.run.seed:
            _start_over(trainer)
        saver(trainer)
    except BaseException:
        made.release()
        _remove(out, there)
        raise
    return trainer, saver, [*loaded.notes, *notes]


def _continued(
    made: RunFolder, task: Task, source: RunFolder, config: Config, state: dict[str, Any]
) -> tuple[Trainer, Saver, list[str]]:
    """A trainer in the new folder with the state of the source, whose settings were `config`."""
    run = task.config.run
    saver = Saver(made)
    logs = saver.logs(task)
    for name, path in logs.files.items():
        original = source.path / name
        path.write_bytes(original.read_bytes() if original.exists() else b"")
    notes = logs.check(state["logs"])
    trainer = Trainer(task, made)
    logs.cut(state["logs"])
    Segments(source.segments).restore(trainer.online, state["segments"], state["ring"])
    if run.seed != config.run.seed:
        state["learner"]["generator"] = trainer.learner.state()["generator"]
        state["hybrid"]["generator"] = trainer.hybrid.state()["generator"]
        state["generator"] = trainer.generator.bit_generator.state
    if run.guard != config.run.guard:  # what the other guard has learned is of no use to this one
        state["guard_state"] = trainer.guard.state()
    try:
        notes += restore(trainer, state)
    except (KeyError, RuntimeError) as error:
        raise GxError(
            f"what {source.path} had learned does not fit --guard {run.guard} ({first_line(error)}); "
            "begin a new run with it"
        ) from None
    return trainer, saver, notes


def _remove(folder: Path, there: set[Path] | None) -> None:
    """Remove what a failed fork has written; what was `there` before stays (None: no folder was)."""
    for path in folder.iterdir() if there is not None else [folder]:
        if path not in (there or ()):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _start_over(trainer: Trainer) -> None:
    """Truncate the episodes under way; their last steps bootstrap from where they were."""
    environments, seed = trainer.environments, trainer.task.config.run.seed
    everywhere = np.ones(len(environments), bool)
    trainer.online.complete(np.stack([environments.code(member) for member in environments.members]))
    for member in environments.members:
        member.restart()
    environments.reset(everywhere, [seed + i for i in range(len(environments))])
    trainer.begin_episodes(everywhere)
