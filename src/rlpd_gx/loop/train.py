"""The training loop: Learner, Guardian, data and environments meet here."""

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np
import torch

from rlpd_gx import trees
from rlpd_gx.envs.actions import uniform_actions
from rlpd_gx.envs.description import describe
from rlpd_gx.errors import GxError
from rlpd_gx.guardian import Audit
from rlpd_gx.learner import Diverged, QLearner
from rlpd_gx.learner.inspection import values_and_targets
from rlpd_gx.learner.q_learner import returns_to_go
from rlpd_gx.loop.environments import COMPLETE_SHARE, Environments
from rlpd_gx.loop.evaluate import Evaluation, count, evaluate
from rlpd_gx.loop.probes import probe_set
from rlpd_gx.loop.run_folder import RunFolder, audit_names
from rlpd_gx.loop.task import Task
from rlpd_gx.metrics.values import q_variance, td_error
from rlpd_gx.replay.hybrid import Hybrid
from rlpd_gx.replay.ring import Ring
from rlpd_gx.trees import Json
from rlpd_gx.types import Array, Batch, Tally, Transition

PARTS = ("environment", "update", "evaluation", "checkpoint")  # of a run, timed apart
CALIBRATION_BLOCKS = 50
EVALUATION_SEED = 1_000_000  # evaluations begin from states that training never begins from


class Watcher(Protocol):
    """Callbacks that observe a run: a progress bar, TensorBoard, a test."""

    def step(self, trainer: "Trainer") -> None:
        """Called after each step."""

    def row(self, kind: str, step: int, values: Json) -> None:
        """Called with each row of metrics."""


Save = Callable[["Trainer"], None]


class Trainer:
    """One run. `train()` goes from where it is to the end; `loop/resume.py` saves and restores it."""

    def __init__(self, task: Task, folder: RunFolder, watchers: tuple[Watcher, ...] = ()) -> None:
        run, data = task.config.run, task.config.data
        self.task, self.folder, self.watchers = task, folder, watchers
        self.guard = task.guard
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))  # equal threads give equal numbers
        self.learner: QLearner = task.learner()
        offline = task.offline if task.learns_offline else None
        if offline is not None and task.config.learner.ood_penalty == "calibrated":
            line = offline.timeline
            returns = returns_to_go(line.reward, line.is_step, data.gamma)
            self.learner.data_returns = torch.as_tensor(returns, device=self.learner.device)
        self.online = Ring(task.layout, min(data.buffer_size, run.steps * 2 + 2 * run.num_envs), run.num_envs)
        sampling, proposing = np.random.SeedSequence(run.seed).spawn(2)
        self.hybrid = Hybrid(
            online=self.online,
            offline=None if offline is None else offline.timeline,
            sampler=task.sampler(self.learner),
            generator=np.random.default_rng(sampling),
            batch_size=data.batch_size,
            updates=data.updates,
            stack=task.example.stack,
            gamma=data.gamma,
        )
        self.generator = np.random.default_rng(proposing)
        audit_files = [folder.path / name for name in audit_names(run.num_envs)]
        self.environments = task.environments([task.make_env(audit=file) for file in audit_files])
        self.evaluation_environment = task.environments([task.make_env(evaluation=True)])
        self.dss, self.dts = task.dss(), task.dts()
        self.step, self.warm_updates, self.owed_updates, self.updates = 0, 0, 0, 0
        self.window = Window()
        self.seconds = dict.fromkeys((*PARTS, "total", "processor"), 0.0)
        self._counted_until = _clocks()  # in seconds["total"] and ["processor"]
        self.stop_signal: int | None = None
        self.probe_set: Batch[Array] | None = None
        self.last_evaluation: Evaluation | None = None
        self.last_score = math.nan

    # --- one training step -------------------------------------------------------------------------------

    def train_step(self) -> None:
        """Propose, certify and execute, sample and learn, store."""
        with self.timed("environment"):
            safe_sets = self.complete_safe_sets()
        proposed = self.propose(safe_sets)
        with self.timed("environment"):
            transition = self.environments.step(proposed, safe_sets)
        # The sets just certified from are the next safe sets of the steps before: those can be sampled now.
        assert transition.safe_set is not None
        self.online.complete(transition.safe_set)
        for _ in range(self.due_updates()):
            with self.timed("update"):
                batch = self.hybrid.sample(self.dss(self.step), self.dts(self.step))
                self.learn(batch)
        self.store(transition)
        self.step += len(self.environments)

    def propose(self, safe_sets: Array | None) -> Array:
        """Proposed actions [N, ...]."""
        if self.step < self.first_update and not self.warm_updates:
            return self.random_actions()
        return self.learner.explore(self.environments.observation, safe_sets)

    def complete_safe_sets(self) -> Array | None:
        """Codes [N, width] of the safe sets, where they must be known before an action is proposed."""
        asked = self.learner.config.execution == "resample"
        if self.environments.lazy and not asked:  # a guarded backup needs some complete sets
            asked = self.generator.random() < COMPLETE_SHARE
        return self.environments.safe_sets() if asked else None

    @property
    def first_update(self) -> int:
        """Steps before the first online update: none where offline rows fill the minibatches.

        A policy that was not trained on offline data proposes random actions until then.
        """
        return max(self.task.config.data.learning_starts, 1) if self.task.online_only else 0

    def due_updates(self) -> int:
        """Blocks of updates that are due in this step."""
        if self.step < self.first_update or not self.guard.learns:
            return 0
        self.owed_updates += len(self.environments)
        blocks, self.owed_updates = divmod(self.owed_updates, self.task.config.data.update_every)
        return blocks

    def learn(self, batch: Batch[Array]) -> None:
        """One block of updates; a minibatch that makes the loss infinite is kept for inspection."""
        if self.updates == 0 and self.learner.calibrates:
            self.calibrate()
        try:
            progress = min(self.step / max(self.task.config.run.steps, 1), 1.0)
            self.window.learned(self.learner.update(batch, progress=progress) | self.guard.learn(self.hybrid))
        except Diverged as error:
            path = self.folder.path / "diverged.npz"
            minibatch = trees.named_leaves(batch.minibatch(error.minibatch).arrays())
            np.savez(path, **minibatch)
            raise GxError(
                f"step {self.step}: {error}; that minibatch is in {path}, and the last checkpoint is unchanged"
            ) from None
        self.updates += len(batch.reward)

    def store(self, transition: Transition) -> None:
        """Write the step to the replay buffer, count it, and reset where episodes ended."""
        self.online.add(self.guard.stored(transition))
        self.window.stepped(transition, self.environments)
        for done in self.environments.finished:
            self.last_score = done.score
            values = asdict(done)
            self.report("episode", **({"return": values.pop("score")} | values))
        if transition.ended.any():
            with self.timed("environment"):
                self.environments.reset(transition.ended)
            self.begin_episodes(transition.ended)

    def begin_episodes(self, where: Array) -> None:
        """Start episodes in the replay buffer for environments [N] bool that have been reset."""
        self.online.begin(self.environments.frame, where=where)

    def calibrate(self) -> None:
        """Fit the learner's observation normalisation to sampled batches."""
        blocks = (self.hybrid.sample(self.dss(self.step)) for _ in range(CALIBRATION_BLOCKS))
        self.learner.calibrate(
            trees.map_leaves(lambda v: v.reshape(-1, *v.shape[2:]), block.observation) for block in blocks
        )

    def random_actions(self) -> Array:
        """Uniform actions [N, ...]."""
        space = self.task.example.actions.learner_space
        return uniform_actions(space, len(self.environments), self.generator)

    # --- around it ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The first resets, and what is to be said about the data; not called when a run is resumed."""
        run = self.task.config.run
        if self.task.learns_offline and self.task.offline is not None:
            for finding in self.task.offline.findings:
                print(f"note: {finding}", file=sys.stderr)
        everywhere = np.ones(run.num_envs, bool)
        self.environments.reset(everywhere, [run.seed + i for i in range(run.num_envs)])
        self.begin_episodes(everywhere)

    def train(self, save: Save) -> Json:
        """Train to the end; `save(trainer)` makes a checkpoint. Returns the result."""
        run, self._counted_until = self.task.config.run, _clocks()
        with self.signals():
            self.warm_start(save)
            while self.step < run.steps and self.stop_signal is None:
                self.train_step()
                self.after_step(save)
            if self.stop_signal is not None:
                self.checkpoint(save)
                raise Stopped(self.stop_signal, self.step)
        if self.last_evaluation is None or self.step == 0:
            self.evaluate()
        self.count_time()
        result = self.result()
        self.folder.write("result.json", result)
        self.folder.release()
        return result

    def warm_start(self, save: Save) -> None:
        """Updates before the first step."""
        total = self.task.config.run.warm_start_updates
        if total and self.task.offline is None:
            raise GxError("warm_start_updates learn from offline data, and there is none; give --offline")
        before = self.warm_updates
        while self.warm_updates < total and self.stop_signal is None:
            with self.timed("update"):
                self.learn(self.hybrid.sample(0.0, self.dts(0)))
            self.warm_updates += self.task.config.data.updates
            for watcher in self.watchers:
                watcher.step(self)
        if self.warm_updates > before and self.stop_signal is None:
            self.report("train", **self.window.row())
            self.checkpoint(save)

    def after_step(self, save: Save) -> None:
        """Rows, evaluations and checkpoints, each when it is due."""
        run = self.task.config.run
        for watcher in self.watchers:
            watcher.step(self)
        last = self.step >= run.steps
        if self.crossed(run.log_every) or last:
            ratio, interval = self.dss(self.step), self.dts(self.step)
            self.report("train", online_ratio=ratio, interval=interval, **self.window.row())
        if last or (run.evaluate_every and self.crossed(run.evaluate_every)):
            self.evaluate()
        if last or self.crossed(run.checkpoint_every):
            self.checkpoint(save)

    def checkpoint(self, save: Save) -> None:
        """Save the run, with its time so far."""
        self.count_time()
        with self.timed("checkpoint"):
            save(self)

    def evaluate(self) -> None:
        """Whole episodes on an environment of their own."""
        run = self.task.config.run
        episodes = run.evaluation_episodes * (2 if self.step >= run.steps else 1)
        with self.timed("evaluation"):
            self.last_evaluation = evaluate(
                self.learner,
                self.evaluation_environment,
                episodes,
                EVALUATION_SEED + 1_000 * run.seed,
                sample=describe(run.env).sample_in_evaluation,
            )
        self.report("evaluation", **self.last_evaluation.row(), **self.probed())

    def probed(self) -> Json:
        """TD error and ensemble variance on the probe set; it is drawn from the offline data, if there is any."""
        if self.task.offline is None or self.learner.config.actor == "clone" or not self.guard.learns:
            return {}
        self.probe_set = self.probe_set or probe_set(self.task)
        q, target = values_and_targets(self.learner, self.probe_set)
        return {f"probe_{name}": value for name, value in (td_error(q, target) | q_variance(q)).items()}

    def report(self, kind: str, **values: Any) -> None:
        """Write a row of metrics to the file and pass it to the watchers."""
        values = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
        self.folder.log(kind, self.step, **values)
        for watcher in self.watchers:
            watcher.row(kind, self.step, values)

    def crossed(self, every: int) -> bool:
        """Whether a multiple of `every` lies in the last step of all environments."""
        return self.step // every > (self.step - len(self.environments)) // every

    def result(self) -> Json:
        """What came out."""
        run = self.task.config.run
        assert self.last_evaluation is not None
        audits = self.audits()
        return {
            "env": run.env, "preset": self.task.config.preset, "guard": run.guard if run.rules else "no rules",
            "unsafe_events_watched": self.watches_unsafe_events, "corrects": self.corrects,
            "seed": run.seed, "steps": self.step, "updates": self.updates,
            "training": {"steps": self.step, **self.window.total.as_dict()},
            "evaluation": self.last_evaluation.row(),
            "rules_fingerprint": None if self.task.example.guardian is None else self.task.example.guardian.fingerprint,
            "audit": Audit.total(audits).as_dict() if audits else {},
            "rules_left_out_of_backup": {
                name: {"proposals_blocked": Audit.total(audits).tally.rules[name].blocked}
                for name in self.task.unbacked_rules
            },
            "rows": asdict(self.hybrid.counts),
            "simulated_steps": self.simulated_steps,
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
        }  # fmt: skip

    @property
    def simulated_steps(self) -> int:
        """Steps that rules have simulated in a model, in training and in all evaluations."""
        rules = {*self.environments.look_aheads, *self.evaluation_environment.look_aheads}
        return sum(rule.simulated_steps for rule in rules)

    @property
    def corrects(self) -> bool:
        """Whether the guard may execute another action than the proposed one."""
        return bool(self.task.config.run.rules) and self.guard.corrects

    @property
    def watches_unsafe_events(self) -> bool:
        """Whether anything looks for unsafe events: without that, having seen none means nothing."""
        return self.task.watches_unsafe_events or self.window.total.unsafe_events > 0

    def audits(self) -> list[Audit]:
        """The audit of each guarded environment."""
        return [layer.audit for layer in self.environments.guarded]

    def count_time(self) -> None:
        """Bring the totals up to date: what a checkpoint holds is never less than the sum of its parts."""
        now = _clocks()
        for name in now:
            self.seconds[name] += now[name] - self._counted_until[name]
        self._counted_until = now

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add the time inside to a part of the run."""
        start = time.perf_counter()
        yield
        self.seconds[what] += time.perf_counter() - start

    @contextmanager
    def signals(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM ends the run at the next step, with a checkpoint; a second one at once."""

        def note(number: int, frame: object) -> None:
            if self.stop_signal is not None:
                raise KeyboardInterrupt
            self.stop_signal = number

        before = {}
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, note)
        except ValueError:  # not in the main thread, where signals cannot be handled
            pass
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _clocks() -> dict[str, float]:
    """Seconds that pass, and those in which this process computes: it may be paused, or share its processor."""
    return {"total": time.perf_counter(), "processor": time.process_time()}


class Stopped(Exception):
    """The run was asked to end early and has saved itself."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} at step {step}")
        self.number, self.step = number, step


class Window:
    """What happened since the last row of metrics, and in total."""

    def __init__(self) -> None:
        self.tally, self.total = Tally(), Tally()
        self.sums: dict[str, float] = {}
        self.updates = 0

    def stepped(self, transition: Transition, environments: Environments) -> None:
        """Count a step of every environment."""
        for tally in (self.tally, self.total):
            count(tally, transition, environments)

    def learned(self, metrics: dict[str, float]) -> None:
        """Add up the metrics of a block of updates."""
        self.updates += 1
        for name, value in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def row(self) -> dict[str, float]:
        """Means since the last row; then it starts over."""
        values = {name: value / self.updates for name, value in self.sums.items()}
        rates = self.tally.rates() if self.tally.proposals else {}
        self.tally, self.sums, self.updates = Tally(), {}, 0
        return values | rates

    def state(self) -> Json:
        """For a checkpoint."""
        tallies = {"tally": self.tally.as_dict(), "total": self.total.as_dict()}
        return tallies | {"sums": self.sums, "updates": self.updates}

    def load_state(self, state: Json) -> None:
        """The inverse of `state`."""
        self.tally, self.total = Tally.from_dict(state["tally"]), Tally.from_dict(state["total"])
        self.sums, self.updates = dict(state["sums"]), state["updates"]
