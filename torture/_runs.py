"""Tiny real training runs in processes of their own, which can be killed, starved of disk space, or share a folder.

Processes are forked from a server that has imported torch already, so one costs a fraction of a second.
"""

import errno
import io
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import scipy.stats  # noqa: F401  what a run would import while it goes
import torch._dynamo  # noqa: F401

import rlpd_gx.envs.probes  # noqa: F401
from rlpd_gx.errors import GxError
from rlpd_gx.guards import guardian, none  # noqa: F401
from rlpd_gx.loop.configure import configure
from rlpd_gx.loop.resume import Saver, resume
from rlpd_gx.loop.run_folder import RunFolder
from rlpd_gx.loop.task import Task
from rlpd_gx.loop.train import Trainer

SETTINGS: dict[str, dict[str, Any]] = {
    "discrete": {
        "env": "Probe/LureDiscrete-v0", "rules": "rlpd_gx.envs.probes:lure_mask", "num_envs": 2, "sampler": "uniform",
    },
    "continuous": {"env": "Probe/LureContinuous-v0", "rules": "rlpd_gx.envs.probes:lure_bounds"},
}  # fmt: skip
TINY: dict[str, Any] = {
    "steps": 24, "utd": 1, "batch_size": 8, "hidden_sizes": (8,), "ensemble_size": 2, "learning_starts": 6,
    "evaluate_every": 12, "evaluation_episodes": 1, "checkpoint_every": 6, "log_every": 4, "device": "cpu",
}  # fmt: skip
DONE, REFUSED, CRASHED, KILLED = 0, 3, 4, -signal.SIGKILL


@dataclass(frozen=True)
class Ending:
    """How a process ended."""

    code: int | None
    said: str
    """Its notes, its one sentence, or its traceback."""
    calls: int = 0
    """Calls to the file system that changed something in the folder."""


@dataclass(frozen=True)
class Fault:
    """What happens at the n-th change in the folder: a kill in its middle, or from there on a full disk."""

    call: int
    kind: str  # "kill" or "full"


def start(folder: Path, kind: str, **values: Any) -> list[str]:
    """A whole run in a new folder."""
    config = configure("rlpd-gx", TINY | SETTINGS[kind] | values, "torture")
    trainer = Trainer(Task(config), RunFolder.create(folder, config, "torture"))
    trainer.begin()
    saver = Saver(trainer.folder)
    saver(trainer)
    trainer.train(saver)
    return []


def go_on(folder: Path) -> list[str]:
    """The rest of a run."""
    trainer, saver, notes = resume(folder)
    trainer.train(saver)
    return notes


def half(folder: Path, kind: str, step: int) -> list[str]:
    """A run that ends without a word at a step."""

    class Leave:
        def step(self, trainer: Trainer) -> None:
            if trainer.step >= step:
                os._exit(DONE)

        def row(self, kind: str, step: int, values: dict[str, Any]) -> None:
            pass

    config = configure("rlpd-gx", TINY | SETTINGS[kind], "torture")
    trainer = Trainer(Task(config), RunFolder.create(folder, config, "torture"), (Leave(),))
    trainer.begin()
    saver = Saver(trainer.folder)
    saver(trainer)
    trainer.train(saver)
    return []


def in_process(
    work: Callable[..., list[str]], folder: Path, *more: Any, fault: Fault | None = None
) -> Ending:
    """Do some work on a run folder in a process of its own, to its end."""
    return wait(begin(work, folder, *more, fault=fault))


Running = tuple[Any, Path]


def begin(work: Callable[..., list[str]], folder: Path, *more: Any, fault: Fault | None = None) -> Running:
    """The same, without waiting."""
    handle, name = tempfile.mkstemp(prefix="said-")
    os.close(handle)
    process = _server().Process(target=_main, args=(work, folder, more, fault, Path(name)))
    process.start()
    return process, Path(name)


def wait(running: Running) -> Ending:
    """How it ended."""
    process, answer = running
    process.join()
    text = answer.read_text()
    answer.unlink()
    calls, _, said = text.partition("\n")
    return Ending(process.exitcode, said, int(calls or 0))


def _server() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torture._runs"])
    return context


def _main(
    work: Callable[..., list[str]], folder: Path, more: tuple[Any, ...], fault: Fault | None, answer: Path
) -> None:
    warnings.simplefilter("ignore")
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    calls = FileCalls(folder, fault)
    try:
        with calls.watched():
            said, code = "\n".join(work(folder, *more)), DONE
    except GxError as error:
        said, code = str(error), REFUSED
    except BaseException:
        said, code = traceback.format_exc(), CRASHED
    answer.write_text(f"{calls.count}\n{said}")
    os._exit(code)


class FileCalls:
    """Counts the calls that change a folder, and lets one of them go wrong."""

    EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link")

    def __init__(self, folder: Path, fault: Fault | None) -> None:
        self.folder, self.fault, self.count, self.on = os.path.realpath(folder), fault, 0, False
        self.handles: set[int] = set()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch this process from here on."""
        real_open, real_os_open, real_write, real_fsync = io.open, os.open, os.write, os.fsync
        outer = self

        class Raw(io.FileIO):
            def write(self, data: Any) -> int:
                with memoryview(data).cast("B") as view:
                    outer.change(lambda: io.FileIO.write(self, view[: len(view) // 2]), grows=True)
                return io.FileIO.write(self, data)

        def opened(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **options: Any) -> Any:
            ours = file in outer.handles if isinstance(file, int) else outer.inside(file)
            if not ours or not set(mode) & set("wa+x"):
                return real_open(file, mode, buffering, *args, **options)
            raw = Raw(file, mode.replace("b", "").replace("t", ""), options.get("closefd", True))
            buffer: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return buffer if "b" in mode else io.TextIOWrapper(buffer, *args, **options)

        def os_open(path: Any, flags: int, *args: Any, **options: Any) -> int:
            handle = real_os_open(path, flags, *args, **options)
            if outer.inside(path):
                outer.handles.add(handle)
            return handle

        def write(handle: int, data: bytes) -> int:
            if handle in outer.handles:
                outer.change(lambda: real_write(handle, data[: len(data) // 2]), grows=True)
            return real_write(handle, data)

        def fsync(handle: int) -> None:
            outer.change()
            real_fsync(handle)

        def hook(event: str, args: tuple[Any, ...]) -> None:
            if not outer.on or event not in outer.EVENTS or not any(map(outer.inside, args[:2])):
                return
            if event != "open" or args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                outer.change(grows=event in ("open", "os.mkdir"))

        import builtins

        io.open = builtins.open = opened  # type: ignore[assignment]
        os.open, os.write, os.fsync = os_open, write, fsync  # type: ignore[assignment]
        sys.addaudithook(hook)
        self.on = True
        yield
        self.on = False

    def inside(self, path: Any) -> bool:
        """Whether a path lies in the folder."""
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        text = os.path.abspath(os.fsdecode(path))
        return text == self.folder or text.startswith(self.folder + os.sep)

    def change(self, half: Callable[[], Any] | None = None, *, grows: bool = False) -> None:
        """Something is about to change; `half` does half of it."""
        if not self.on:
            return
        self.count += 1
        if self.fault is None:
            return
        if self.fault.kind == "kill" and self.count == self.fault.call:
            if half is not None:
                half()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault.kind == "full" and self.count >= self.fault.call and grows:
            if half is not None and self.count == self.fault.call:
                half()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.folder)


def outcome(folder: Path) -> dict[str, Any]:
    """All that must be the same in two runs, however often they were interrupted."""
    newest = sorted((folder / "checkpoints").glob("[0-9]*"))[-1]
    result = json.loads((folder / "result.json").read_text())
    result.pop("seconds")
    logs = {file.name: file.read_bytes() for file in sorted(folder.glob("*.jsonl"))}
    return {"tensors": (newest / "tensors.safetensors").read_bytes(), "result": result, **logs}


def differences(folder: Path, whole: dict[str, Any]) -> list[str]:
    """The parts of an outcome that differ."""
    found = outcome(folder)
    return [name for name in sorted({*found, *whole}) if found.get(name) != whole.get(name)]


class Bench:
    """A place for the runs of one part, with uninterrupted ones to compare with."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.folder = Path(tempfile.mkdtemp(prefix="torture-"))
        self.whole: dict[str, dict[str, Any]] = {}
        self.calls: dict[str, int] = {}
        for kind in SETTINGS:
            ending = in_process(start, self.folder / f"whole-{kind}", kind)
            assert ending.code == DONE, ending.said
            self.calls[kind] = ending.calls
            self.whole[kind] = outcome(self.folder / f"whole-{kind}")

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def trials(self, seconds: float) -> Iterator[tuple[int, str, Path]]:
        """Number, kind and folder of one trial after another, until the time is over; at least one."""
        number, until = 0, time.monotonic() + seconds
        while number == 0 or time.monotonic() < until:
            folder = self.folder / f"trial-{number}"
            yield number, self.random.choice(sorted(SETTINGS)), folder
            shutil.rmtree(folder, ignore_errors=True)
            number += 1
