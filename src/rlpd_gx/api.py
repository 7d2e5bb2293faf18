"""`gx.train`: an environment, rules and data in; a trained policy and its run folder out."""

import itertools
import json
import secrets
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym

from rlpd_gx.config import Config
from rlpd_gx.deploy.export import Policy
from rlpd_gx.deploy.export import load_policy as load
from rlpd_gx.envs.description import describe
from rlpd_gx.errors import GxError, refuse_text
from rlpd_gx.guardian.named import BESIDE_RULES
from rlpd_gx.loading import GIVEN, did_you_mean
from rlpd_gx.loop.configure import configure
from rlpd_gx.loop.evaluate import evaluate
from rlpd_gx.loop.fork import fork
from rlpd_gx.loop.resume import Saver, load_learner, resume
from rlpd_gx.loop.run_folder import RunFolder
from rlpd_gx.loop.task import Task
from rlpd_gx.loop.train import Trainer
from rlpd_gx.loop.watchers import Progress, check_services, trackers
from rlpd_gx.metrics import find, measure
from rlpd_gx.replay.offline import OfflineDataset
from rlpd_gx.report import write_report
from rlpd_gx.rules import Rule, conjuncts
from rlpd_gx.trees import Json, JsonMapping

OPTIONS = ("state", *BESIDE_RULES)
"""What guard_options may hold."""

Rules = Rule | Iterable[Rule] | Callable[[gym.Env], object] | str


def train(
    env: str | type[gym.Env] | Callable[..., gym.Env],
    rules: Rules | None = None,
    offline: str | Path | OfflineDataset | None = None,
    *,
    preset: str = "rlpd-gx",
    out: str | Path | None = None,
    progress: bool = True,
    track: Iterable[str] = (),
    guard_options: JsonMapping | None = None,
    **settings: Any,
) -> "Run":
    """Train a policy under a guard that never executes a forbidden action.

    Args:
        env: a Gymnasium id, an environment class, or a function that makes one.
        rules: a rule, several that must all hold, a function env -> rules, or `module:name`; None: no guard.
        offline: a dataset, or the path of one in any supported format.
        preset: settings to start from.
        out: folder of the run; a new one in runs/ if not given.
        progress: print a line at each `log_every`, or show a bar on a terminal.
        track: "wandb" or "trackio": send the numbers there too.
        guard_options: what a rules' module may define beside its rules: state, unsafe_event, fallback, embedding,
            near_miss, initial_action, parameters (see `GuardedEnv`).
        settings: any setting of `rlpd-gx train --help-all`, such as steps=20_000 or guard="shield".
    """
    _check_options(guard_options, "gx.train")
    given = _given(env, rules, guard_options)
    values = {**settings, "env": _name(env, given, "env")}
    if rules is not None:
        values["rules"] = _name(rules, given, "rules")
    dataset = offline if isinstance(offline, OfflineDataset) else None
    if offline is not None and dataset is None:
        values["offline"] = str(offline)
    config = configure(preset, values, "gx.train")
    folder = Path(out) if out is not None else new_folder(config)
    common: Json = {"command": "gx.train(...)", "progress": progress, "track": track}
    if dataset is None:
        return begin(config, folder, **common)
    RunFolder.refuse_another(folder)
    config = configure(preset, values | {"offline": str(folder / "offline")}, "gx.train")
    with _saved(dataset, folder):
        task = checked(config, track)
    return started(task, folder, **common)


class Run:
    """A run folder: its policy, evaluation, report, and how to resume it.

    A run that was started from Python objects in another process needs them again: `Run(folder, env=..., rules=...)`.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        env: object = None,
        rules: object = None,
        guard_options: JsonMapping | None = None,
    ) -> None:
        self.folder = Path(folder)
        self._objects: Json = {}
        _check_options(guard_options, "gx.Run")
        if env is not None or rules is not None:
            self._objects = {**(guard_options or {}), "env": env, "rules": rules}
            self._register()

    @property
    def result(self) -> Json:
        """The content of result.json; empty before the run has ended."""
        path = self.folder / "result.json"
        return json.loads(path.read_text()) if path.exists() else {}

    @cached_property
    def policy(self) -> Policy:
        """The trained policy with its guard: `run.policy.act(observation).action`."""
        self._register()
        return load(self.folder)

    def evaluate(
        self,
        episodes: int = 20,
        *,
        seed: int = 2_000_000,
        sample: bool | None = None,
        metrics: Iterable[str] = (),
    ) -> Json:
        """Returns, lengths and counts of whole episodes under the guard; `metrics` are ours, or module:function."""
        refuse_text(metrics, "metrics")
        measured = tuple(metrics)
        for name in measured:
            find(name)  # report a mistake before playing any episode
        self._register()
        learner, environments = load_learner(self.folder)
        if sample is None:
            sample = describe(RunFolder.open(self.folder)[1].run.env).sample_in_evaluation
        played = evaluate(learner, environments, episodes, seed, sample=sample)
        return played.row() | measure(played.episodes, measured)

    def report(self) -> Path:
        """Write report.html and return its path."""
        return write_report(self.folder)

    def resume(self, steps: int | None = None, *, progress: bool = True, track: Iterable[str] = ()) -> "Run":
        """Resume after an interruption, or train for more `steps` than the run was started with."""
        self._register()
        return self._shared(continued(self.folder, steps, progress=progress, track=track))

    def fork(
        self,
        step: int | None = None,
        *,
        out: str | Path | None = None,
        progress: bool = True,
        track: Iterable[str] = (),
        **settings: Any,
    ) -> "Run":
        """Train a new run from a checkpoint of this one, with other settings; without `step`, from the newest.

        Kept are the two newest checkpoints and those at each quarter of the run. Curves and counts of the new run
        begin with those of this one.
        """
        path = None if out is None else Path(out)
        command = "gx.Run.fork(...)"
        self._register()
        return self._shared(
            forked(self.folder, step, path, settings, command=command, progress=progress, track=track)
        )

    def _register(self) -> None:
        """Before each use: a run of an earlier version may share its module's name with another run."""
        if self._objects:
            given_again(self.folder, **self._objects)

    def _shared(self, run: "Run") -> "Run":
        run._objects = self._objects
        return run

    def __repr__(self) -> str:
        score = self.result.get("evaluation", {}).get("mean")
        return f"Run({str(self.folder)!r}" + (")" if score is None else f", return {score:.1f})")


def begin(
    config: Config,
    folder: Path,
    *,
    command: str | None = None,
    progress: bool = True,
    track: Iterable[str] = (),
) -> Run:
    """Train a config to its end, in a new run folder."""
    return started(checked(config, track), folder, command=command, progress=progress, track=track)


def checked(config: Config, track: Iterable[str] = ()) -> Task:
    """The task of a config, with what is wrong in the request found before a folder is made."""
    task = Task(config)
    check_services(track)
    check(task)
    return task


def started(
    task: Task,
    folder: Path,
    *,
    command: str | None = None,
    progress: bool = True,
    track: Iterable[str] = (),
) -> Run:
    """Train a checked task to its end, in a new run folder."""
    config = task.config
    if progress and not config.run.rules:
        print("no rules: training without a guard", file=sys.stderr)
    elif progress and (left_out := task.unbacked_rules):
        assert task.example.guardian is not None
        print(
            f"note: {len(left_out)} of {len(task.example.guardian.names)} rules ({', '.join(left_out)}) "
            f"{'holds' if len(left_out) == 1 else 'hold'} at execution only, not in the value backup: the state to ask "
            "about later cannot be stored as at most 1,024 numbers",
            file=sys.stderr,
        )
    made = RunFolder.create(folder, config, command or shlex.join(["rlpd-gx", *sys.argv[1:]]))
    trainer, save = Trainer(task, made), Saver(made)
    trainer.begin()
    save(trainer)
    return _finished(trainer, save, progress, track)


def continued(
    folder: Path, steps: int | None = None, *, progress: bool = True, track: Iterable[str] = ()
) -> Run:
    """Resume the run in a folder, for the number of steps it was started with, or more."""
    check_services(track)
    trainer, save, notes = resume(folder, steps=steps)
    if progress:
        for note in notes:
            print(f"note: {note}", file=sys.stderr)
        print(f"resuming at step {trainer.step:,}", file=sys.stderr)
    return _finished(trainer, save, progress, track)


def forked(
    source: Path,
    step: int | None,
    out: Path | None,
    values: JsonMapping,
    *,
    words: str = "gx.Run.fork",
    command: str | None = None,
    progress: bool = True,
    track: Iterable[str] = (),
) -> Run:
    """Train from a checkpoint of another run, with other settings, in a new folder."""
    check_services(track)
    out = out or free(source.with_name(f"{source.name}-fork"))
    trainer, save, notes = fork(
        source, step, out, values, words=words, command=command or shlex.join(["rlpd-gx", *sys.argv[1:]])
    )
    if progress:
        for note in notes:
            print(f"note: {note}", file=sys.stderr)
        print(f"forked from {source} at step {trainer.step:,}", file=sys.stderr)
    return _finished(trainer, save, progress, track)


def check(task: Task) -> None:
    """Find what is wrong with a request before a folder is made."""
    config = task.config
    task.sampler(task.learner())
    task.dss()
    task.dts()
    if task.offline is None and (config.run.warm_start_updates or config.learner.actor == "clone"):
        raise GxError("cloning and --warm-start-updates learn from offline data: give --offline")


@contextmanager
def _saved(dataset: OfflineDataset, folder: Path) -> Iterator[None]:
    """The dataset in the folder of a run to be; an error in the block takes it back."""
    new = not folder.exists()
    saved = dataset.save(folder / "offline")
    try:
        yield
    except BaseException:
        shutil.rmtree(folder if new else saved, ignore_errors=True)
        raise


def new_folder(config: Config) -> Path:
    """A folder in runs/ that does not exist yet."""
    environment = config.run.env.rpartition(":")[2].replace("/", "-")
    return free(Path("runs") / f"{environment}-{config.preset}-seed{config.run.seed}")


def free(path: Path) -> Path:
    """This path, or the first of path-2, path-3, ... that does not exist yet."""
    candidates = (path if n == 1 else path.with_name(f"{path.name}-{n}") for n in itertools.count(1))
    return next(candidate for candidate in candidates if not candidate.exists())


def _finished(trainer: Trainer, save: Saver, progress: bool, track: Iterable[str]) -> Run:
    with Progress(sys.stderr, quiet=not progress) as line, trackers(trainer, track) as others:
        trainer.watchers = (line, *others)
        trainer.train(save)
    return Run(trainer.folder.path)


def given_again(folder: Path, **objects: object) -> None:
    """Register the objects of a run that was started in another process, under the names in its settings."""
    asked = RunFolder(folder).asked()
    for name in {str(asked[key]).partition(":")[0] for key in ("env", "rules")}:
        if name.startswith(GIVEN):
            sys.modules[name] = ModuleType(name)
            vars(sys.modules[name]).update(objects)


def _check_options(options: JsonMapping | None, source: str) -> None:
    """Raise for a name that nothing would read: a misspelt fallback or unsafe event would be missed in silence."""
    for name in options or {}:
        if name not in OPTIONS:
            instead = did_you_mean(str(name), OPTIONS) or f"; there are {', '.join(OPTIONS)}"
            raise GxError(f"{source}: guard_options has no {name!r}{instead}")


def _given(env: object, rules: object, options: JsonMapping | None) -> ModuleType:
    """A module that holds the objects, so that settings can name them as `module:name` like any other."""
    # in no other process either: a run folder keeps the name, and may be opened beside any other
    module = ModuleType(f"{GIVEN}_{secrets.token_hex(8)}", "Objects passed to gx.train.")
    vars(module).update(options or {}, env=env, rules=rules)
    sys.modules[module.__name__] = module
    return module


def _name(thing: object, given: ModuleType, name: str) -> str:
    """The name of an environment or rules in the settings: its own if any process can import it, else the one given."""
    if isinstance(thing, str):
        return thing
    if isinstance(thing, gym.Env):
        raise GxError(
            "env is an environment, and training needs several: give its class, or a function that makes one"
        )
    passed = {n: v for n in OPTIONS if (v := getattr(given, n, None)) is not None}
    if isinstance(thing, Rule | list | tuple):
        named = _named_rules(thing, passed)
    else:
        home, own = getattr(thing, "__module__", "__main__"), getattr(thing, "__qualname__", "")
        found = home != "__main__" and getattr(sys.modules.get(home), own, None) is thing
        named = f"{home}:{own}" if found and (name == "env" or not passed) else None
    return named or f"{given.__name__}:{name}"


def _named_rules(rules: Rule | Iterable[Rule], passed: JsonMapping) -> str | None:
    """`module:name` of rules that a module holds, unless that name would bring other options than were passed."""
    atoms = [atom for rule in conjuncts(rules) for atom in rule.atoms()]
    for home in {getattr(atom.fn, "__module__", "__main__"): None for atom in atoms}:
        module = sys.modules.get(home)
        if home == "__main__" or getattr(module, "__spec__", None) is None:  # no other process can import it
            continue
        beside = {n: v for n in OPTIONS if (v := getattr(module, n, None)) is not None}
        unused = [n for n, value in beside.items() if passed.get(n) is not value]
        for name in [n for n, value in vars(module).items() if value is rules]:
            if not unused and beside.keys() == passed.keys():
                return f"{home}:{name}"
            if unused:
                print(
                    f"note: {home} defines {', '.join(unused)}, which rules passed as objects do not use; pass "
                    f"{'it' if len(unused) == 1 else 'them'} in guard_options, or give rules='{home}:{name}'",
                    file=sys.stderr,
                )
            return None
    return None
