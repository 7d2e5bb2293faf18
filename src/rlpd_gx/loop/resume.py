"""Save a run and resume it, bit for bit where the environments can be restored."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from rlpd_gx import settings
from rlpd_gx.envs import snapshots
from rlpd_gx.errors import GxError
from rlpd_gx.learner import QLearner
from rlpd_gx.loop.checkpoint import Checkpoints, Loaded
from rlpd_gx.loop.environments import Environments, Member
from rlpd_gx.loop.evaluate import Evaluation
from rlpd_gx.loop.guard_identity import GuardIdentity
from rlpd_gx.loop.run_folder import Logs, RunFolder
from rlpd_gx.loop.task import Counting, Task
from rlpd_gx.loop.train import Trainer
from rlpd_gx.replay.segments import Segments
from rlpd_gx.rules import Lookahead
from rlpd_gx.trees import Json, packed, unpacked

FORMAT = 5
"""Changes with what a checkpoint holds: one of another format is refused, never reinterpreted."""


class Saver:
    """Makes checkpoints of a trainer: parameters and states in one, experience in segments that only grow."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.checkpoints = Checkpoints(folder.checkpoints)
        self.segments = Segments(folder.segments)
        self._bound: dict[str, Any] = {}  # what a checkpoint is bound to; the same in all of a run
        self._logs: Logs | None = None

    def __call__(self, trainer: Trainer) -> None:
        """Write a checkpoint, or leave the last one as it was."""
        self.segments.append(trainer.online)
        state = self.bound_to(trainer.task) | {"logs": self.logs(trainer.task).state()}
        total = trainer.task.config.run.steps
        self.checkpoints.save(
            trainer.step,
            state | _state(trainer, self.segments),
            files=self.segments.files,
            milestones=[total // 4, total // 2, 3 * total // 4],  # to fork from
        )
        self.segments.prune({path.name for path in self.checkpoints.files()})

    def logs(self, task: Task) -> Logs:
        """The files of the run that only grow."""
        if self._logs is None:
            self._logs = Logs(self.folder.path, task.config.run.num_envs)
        return self._logs

    def bound_to(self, task: Task) -> dict[str, Any]:
        """The settings, the guard and the offline data that a checkpoint belongs to."""
        if not self._bound:
            identity = GuardIdentity.of_task(task)
            if identity.unreadable:
                warnings.warn(
                    f"this run cannot be resumed by another process, since no fingerprint can cover "
                    f"{', '.join(identity.unreadable)} (docs/guardian.md says what to do)",
                    stacklevel=2,
                )
            self._bound = {
                "format": FORMAT,
                "config": self.folder.asked(),
                "guard": dict(identity.fingerprints),
                "offline_digest": None if task.offline is None else task.offline.digest(),
            }
        return self._bound


def resume(
    path: Path, steps: int | None = None, counting: Counting | None = None
) -> tuple[Trainer, Saver, list[str]]:
    """The trainer of a run folder as it was at its newest good checkpoint, and notes for the user.

    `steps` extends the run: its schedules then stretch over the new length.
    """
    folder, config = RunFolder.resume(path)
    if steps is not None:
        config = settings.with_values(config, {"steps": steps}, "--steps")
    saver, task = Saver(folder), Task(config, counting)
    logs = saver.logs(task)
    if not saver.checkpoints.exist():  # killed before the first one was complete
        if origin := folder.asked().get("forked_from"):
            raise GxError(
                f"{path}: was stopped before it held what {origin} had learned; remove this folder and fork again"
            )
        if _has_taken_steps(
            folder, saver.segments
        ):  # its first checkpoint was complete before the first of them
            raise GxError(
                f"{folder.checkpoints}: the checkpoints of this run are gone, though it has taken steps; restore that "
                "folder, or begin a new run in another one"
            )
        logs.cut(None)
        trainer = Trainer(task, folder)
        trainer.begin()
        if steps is not None:
            folder.write("config.json", folder.asked() | {"steps": steps})
        saver(trainer)
        return trainer, saver, ["there is no checkpoint yet: the run begins"]
    loaded = saver.checkpoints.load()
    state = loaded.state
    refuse_other_settings(folder, state)
    refuse_other_rules(path, task, state)
    if steps is not None:
        if steps <= state["step"]:
            raise GxError(f"{path}: is at step {state['step']:,} already; give more --steps than that")
        folder.write("config.json", folder.asked() | {"steps": steps})
    if state["offline_digest"] != saver.bound_to(task)["offline_digest"]:
        raise GxError(
            f"{path}: the offline data {config.run.offline} is not what the run began with; restore it, or "
            "begin a new run"
        )
    notes = [*loaded.notes, *logs.check(state["logs"])]
    trainer = Trainer(task, folder)
    logs.cut(state["logs"])  # new audits write a start line: cut that too, since these continue
    saver.segments.restore(trainer.online, state["segments"], state["ring"])
    return trainer, saver, [*notes, *restore(trainer, state)]


def _has_taken_steps(folder: RunFolder, segments: Segments) -> bool:
    metrics = folder.path / "metrics.jsonl"
    reported = metrics.exists() and metrics.stat().st_size > 0
    return reported or (folder.path / "result.json").exists() or segments.hold_steps()


def restore(trainer: Trainer, state: dict[str, Any]) -> list[str]:
    """Make a new trainer what another was when it was saved, but for its replay buffer; returns notes for the user."""
    notes: list[str] = []
    trainer.learner.load_state(state["learner"])
    trainer.guard.load_state(state["guard_state"])
    trainer.hybrid.load_state(state["hybrid"])
    trainer.generator.bit_generator.state = state["generator"]
    trainer.window.load_state(state["window"])
    for name in ("step", "warm_updates", "owed_updates", "updates"):
        setattr(trainer, name, state[name])
    trainer.seconds |= state["seconds"]
    trainer.last_score = np.nan if state["last_score"] is None else state["last_score"]
    if state["last_evaluation"] is not None:
        trainer.last_evaluation = Evaluation.from_state(state["last_evaluation"])
    _recall(trainer.evaluation_environment.look_aheads, state["evaluation_rules"])
    for member, saved in zip(trainer.environments.members, state["environments"], strict=True):
        notes += _restore_member(trainer, member, saved)
    # Episodes that start over: their last step is truncated, and bootstraps from the safe set saved for that.
    sets = [saved["safe_set"] for saved in state["environments"]]
    for i in [i for i, found in enumerate(sets) if found is not None]:
        here = np.arange(len(sets)) == i
        trainer.online.complete(np.tile(sets[i], (len(sets), 1)), where=here)
        trainer.begin_episodes(here)
    return notes


def last_saved(path: Path) -> tuple[RunFolder, Task, Loaded]:
    """A run as it was last saved, to be read; refused if its settings or its rules are others now."""
    folder, config = RunFolder.open(path)
    loaded, task = Checkpoints(folder.checkpoints).load(), Task(config)
    if loaded.notes:  # an older policy must not pass for the run's
        damage = loaded.notes[0].partition(";")[0]
        raise GxError(f"{damage}; continue from the checkpoint before it with: rlpd-gx train --resume {path}")
    refuse_other_settings(folder, loaded.state)
    refuse_other_rules(path, task, loaded.state)
    return folder, task, loaded


def refuse_other_settings(folder: RunFolder, state: dict[str, Any]) -> None:
    """Raise unless config.json says what it said when the checkpoint was made."""
    if state.get("format") != FORMAT:
        raise GxError(
            f"{folder.checkpoints}: was written by another version of rlpd-gx and cannot be continued; start a new run"
        )
    asked, saved = folder.asked(), state["config"]
    missing = object()
    for name in sorted({*asked, *saved} - {"steps"}):  # a run may be extended
        now, then = asked.get(name, missing), saved.get(name, missing)
        if now != then or type(now) is not type(then):
            said = "is missing" if now is missing else f"is {now!r}"
            was = "did not have it" if then is missing else f"was made with {then!r}"
            raise GxError(
                f"{folder.path / 'config.json'}: {name} {said}, but the checkpoint {was}; restore the file, or start "
                "a new run with other settings"
            )


def refuse_other_rules(path: Path, task: Task, state: dict[str, Any]) -> None:
    """Raise unless rules and their options are those of the checkpoint."""
    GuardIdentity.of_task(task).refuse_changes(
        state["guard"],
        str(path),
        task.config.run.rules,
        "the checkpoint was made",
        "restore that module as it was, or begin a new run: experience under other rules is not mixed",
    )


def _state(trainer: Trainer, segments: Segments) -> dict[str, Any]:
    evaluation = trainer.last_evaluation
    return {
        "learner": trainer.learner.state(),
        "guard_state": trainer.guard.state(),
        "segments": segments.names,
        "ring": trainer.online.state()[1],
        "hybrid": trainer.hybrid.state(),
        "generator": trainer.generator.bit_generator.state,
        "window": trainer.window.state(),
        "step": trainer.step,
        "warm_updates": trainer.warm_updates,
        "owed_updates": trainer.owed_updates,
        "updates": trainer.updates,
        "seconds": dict(trainer.seconds),
        "last_score": None if np.isnan(trainer.last_score) else trainer.last_score,
        "last_evaluation": None if evaluation is None else evaluation.state(),
        "environments": [
            _member_state(trainer.environments, member) for member in trainer.environments.members
        ],
        "evaluation_rules": [rule.memory() for rule in trainer.evaluation_environment.look_aheads],
    }


def _member_state(environments: Environments, member: Member) -> dict[str, Any]:
    environment = snapshots.snapshot(member.env)
    return {
        "environment": environment,
        "observation": packed(member.observation),
        "counts": member.counts(),
        "audit": None if member.guarded is None else member.guarded.audit.state(),
        "rules": [rule.memory() for rule in member.look_aheads],
        # for an episode that must start over: its last step is truncated here, and bootstraps from this state
        "safe_set": None if environment is not None else environments.code(member),
    }


def _restore_member(trainer: Trainer, member: Member, saved: dict[str, Any]) -> list[str]:
    if member.guarded is not None:
        member.guarded.audit.load_state(saved["audit"])
    _recall(member.look_aheads, saved["rules"])
    if saved["environment"] is not None:
        snapshots.restore(member.env, saved["environment"])
        member.observation = unpacked(saved["observation"])
        for name, value in saved["counts"].items():
            setattr(member, name, value)
        return []
    why = snapshots.why_not(member.env)
    seed = trainer.task.config.run.seed + 7919 * (trainer.step + 1) + member.index
    member.reset(seed)
    return [f"the episode of environment {member.index} starts over: {why}"]


def _recall(rules: list[Lookahead], memories: list[Json]) -> None:
    for rule, memory in zip(rules, memories, strict=True):
        rule.restore_memory(memory)


def trained(path: Path) -> tuple[QLearner, Task]:
    """The learner of a run as it was last saved, and its task with what the guard has learned."""
    _, task, loaded = last_saved(path)
    return restored_learner(task, loaded.state), task


def restored_learner(task: Task, state: dict[str, Any]) -> QLearner:
    """The learner in the state of a checkpoint; the task's guard gets back what it has learned."""
    learner = task.learner()
    learner.load_state(state["learner"])
    task.guard.load_state(state["guard_state"])
    return learner


def load_learner(path: Path) -> tuple[QLearner, Environments]:
    """The learner of a run as it was last saved, and one member of its environment to play in."""
    learner, task = trained(path)
    return learner, task.environments([task.make_env(evaluation=True)])
