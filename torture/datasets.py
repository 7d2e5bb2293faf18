"""Dataset files, damaged in every format: one sentence, in bounded time and memory, and nothing wrong accepted.

Each trial damages a small valid file and loads it in a forked child with a limit on its memory; the parent keeps the
time. A trial is repeated with `python -m torture.datasets FORMAT SEED`.
"""

import hashlib
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from torture import Row, _writers
from torture._damage import bomb, damaged_bytes
from torture._formats import FORMATS, endless_number, tf_messages

MEMORY_BYTES = 2 << 30  # address space a trial may take on top of what is loaded
TRIAL_SECONDS = 20
WORKER_TRIALS = 250  # then a fresh one: what libraries keep must not add up
WITHOUT = "no checksum covers CSV, plain HDF5 (Minari too), or the headers and footer of Parquet: there damage that "
WITHOUT += "leaves plausible numbers is accepted"


def content(path: Path, label: str, cache: Path, name: str | None) -> tuple[str, str]:
    """(checksum of what was loaded, what in it must not be)."""
    from rlpd_gx.replay.offline import load
    from rlpd_gx.theory import load_mdp

    if label.startswith("mdp"):
        mdp = load_mdp(path)
        table = mdp.transitions if isinstance(mdp.transitions, np.ndarray) else mdp.transitions.toarray()
        columns = {"t": table, "r": mdp.rewards, "a": mdp.allowed, "i": mdp.inevitable}
        bad = "" if np.isfinite(table).all() and np.isfinite(mdp.rewards).all() else "not finite"
        return _sum({**columns, "d": np.array(mdp.discount)}), bad
    data = load(path, format=name, options=FORMATS[label].options, root=cache)
    line = data.timeline
    learned = {k: v for k, v in line.columns().items() if k.startswith(("obs", "exec", "prop", "rew"))}
    bad = [k for k, v in learned.items() if v.dtype.kind not in "biuf" or not np.isfinite(v).all()]
    return _sum(line.columns()), f"not finite: {bad}" if bad else ""


def _sum(columns: dict[str, np.ndarray]) -> str:
    total = hashlib.sha256()
    for key, column in sorted(columns.items()):
        total.update(f"{key} {column.dtype} {column.shape}".encode() + np.ascontiguousarray(column).tobytes())
    return total.hexdigest()


@dataclass
class Outcome:
    """Of one trial."""

    label: str
    seed: int
    what: str = ""
    blind: bool = False
    result: str = ""
    """refused, accepted, raised, memory; the parent adds died and hung."""
    said: str = ""
    right: bool = True
    """If accepted: whether the content is that of the undamaged file."""
    bad: str = ""

    def __str__(self) -> str:
        return f"{self.label} {self.seed} ({self.what}): {self.result} {self.said}{self.bad}"


class Bench:
    """The undamaged files, and one trial on a copy of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths: dict[str, Path] = {}
        self.right: dict[str, set[str]] = {}
        for label, format in FORMATS.items():
            folder = root / label.replace(" ", "-")
            folder.mkdir()
            self.paths[label] = format.write(folder)
            self.right[label] = {self._content(self.paths[label], label, format.name)[0]}
        for kind in ("gzip", "npz"):
            bomb(kind)  # made once, before any child is forked
        endless_number()
        # A plain TFRecord cut between two records is a shorter TFRecord.
        for count in range(1, len(tf_messages())):
            some = _writers.write_shard(root / "some", tf_messages()[:count], compress=False)
            self.right["tfrecord"].add(self._content(some, "tfrecord", "rl_unplugged")[0])

    def trial(self, label: str, seed: int) -> Outcome:
        """Damage, load, tell."""
        from rlpd_gx.errors import GxError

        rng = np.random.default_rng([seed, *label.encode()])
        outcome, format = Outcome(label, seed, blind=bool(rng.random() < 0.6)), FORMATS[label]
        whole = self.root / label.replace(" ", "-")
        spoiled = self.root / "spoiled"
        shutil.copytree(whole, spoiled)
        path = spoiled / self.paths[label].relative_to(whole)
        try:
            if outcome.blind:
                inside = sorted(file for file in spoiled.rglob("*") if file.is_file())
                file = inside[rng.integers(len(inside))]
                data, outcome.what = damaged_bytes(file.read_bytes(), rng)
                file.write_bytes(data)
                outcome.what += f" of {file.name}"
            else:
                with np.errstate(all="ignore"):
                    try:
                        outcome.what = format.knowing(path, rng)
                    except Exception as error:  # a writer that refuses such damage itself
                        outcome.what, outcome.result = f"cannot be made: {error}", "skipped"
                        return outcome
            name = format.name if rng.random() < 0.5 else None
            self._judge(outcome, path, name, GxError)
        finally:
            shutil.rmtree(spoiled)
        return outcome

    def _judge(self, outcome: Outcome, path: Path, name: str | None, refusal: type[Exception]) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            found, outcome.bad = self._content(path, outcome.label, name)
            outcome.result, outcome.right = "accepted", found in self.right[outcome.label]
        except refusal as error:
            outcome.result, outcome.said = "refused", str(error)
            chain: BaseException | None = error
            while chain is not None:
                if isinstance(chain, MemoryError):
                    outcome.result = "memory"
                chain = chain.__cause__ or chain.__context__
        except MemoryError as error:
            outcome.result, outcome.said = "memory", traceback.format_exc(limit=-3) + str(error)
        except BaseException:
            outcome.result, outcome.said = "raised", traceback.format_exc(limit=-3)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        if grown > MEMORY_BYTES / 2 / 1024:
            outcome.result, outcome.said = "memory", f"took {grown // 1024} MB"

    def _content(self, path: Path, label: str, name: str | None) -> tuple[str, str]:
        cache = Path(tempfile.mkdtemp(dir=self.root))
        try:
            return content(path, label, cache, name)
        finally:
            shutil.rmtree(cache)


def _serve(bench: Bench, pipe: Connection) -> None:
    """Trials on request, under a limit on memory."""
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY_BYTES, taken + MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.filterwarnings("error", category=RuntimeWarning)  # a cast that changed numbers
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    while True:
        pipe.send(bench.trial(*pipe.recv()))


class Worker:
    """A warm child, replaced when it dies, hangs or has served long enough."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.served, self.process = bench, WORKER_TRIALS, None

    def trial(self, label: str, seed: int) -> Outcome:
        if self.served >= WORKER_TRIALS:
            self.stop()
            here, there = multiprocessing.Pipe()
            context = multiprocessing.get_context("fork")
            self.process = context.Process(target=_serve, args=(self.bench, there), daemon=True)
            self.process.start()
            there.close()
            self.pipe, self.served = here, 0
        self.served += 1
        self.pipe.send((label, seed))
        outcome = Outcome(label, seed, result="hung")
        try:
            start, begun = time.monotonic(), self._cpu_seconds()
            # Its own time on the processor, as others may keep it waiting; or much more on the wall, if it sleeps.
            while (
                self._cpu_seconds() - begun < TRIAL_SECONDS and time.monotonic() - start < 10 * TRIAL_SECONDS
            ):
                if self.pipe.poll(0.5):
                    return self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            outcome = Outcome(label, seed, result="died", said=f"exit code {self.process.exitcode}")
        self.served = WORKER_TRIALS
        shutil.rmtree(self.bench.root / "spoiled", ignore_errors=True)
        return outcome

    def _cpu_seconds(self) -> float:
        user, system = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()


def outcomes(seconds: float, seed: int, most: int | None = None) -> Iterator[Outcome]:
    """Trials of all formats in turn, until the time or the number is reached."""
    import ale_py  # noqa: F401  warm in the parent, so that a new child costs nothing
    import google_crc32c  # noqa: F401
    import h5py  # noqa: F401
    import minari.dataset._storages.hdf5_storage  # noqa: F401

    import rlpd_gx.theory  # noqa: F401

    turns = [label for label, format in FORMATS.items() for _ in range(format.weight)]
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        start, count = time.monotonic(), 0
        worker = Worker(Bench(Path(folder)))
        try:
            while time.monotonic() - start < seconds and count < (most or np.inf):
                yield worker.trial(turns[count % len(turns)], seed * 10**6 + count)
                count += 1
        finally:
            worker.stop()


def run(seconds: float, seed: int, most: int | None = None) -> list[Row]:
    """Damaged files are refused in one sentence, or hold what they held."""
    sentence = Row("a damaged dataset file is refused in one sentence or read: no traceback, no crash")
    hang = Row(f"a damaged dataset file is dealt with in {TRIAL_SECONDS} seconds of the processor")
    memory = Row(f"a damaged dataset file takes no more than {MEMORY_BYTES >> 30} GiB, whatever it declares")
    plain = Row("what is accepted from a damaged dataset file is finite numbers", note=WITHOUT)
    inside = Row("HDF5 links and storage outside the file are refused")
    intact = {
        label: Row(f"{label}: nothing wrong is accepted", note=f"by its {format.checksum}")
        for label, format in FORMATS.items()
        if format.checksum
    }
    counts: dict[str, list[int]] = {label: [0, 0] for label in FORMATS}
    for outcome in outcomes(seconds, seed, most):
        if outcome.result == "skipped":
            continue
        what, accepted = str(outcome), outcome.result == "accepted"
        counts[outcome.label][accepted] += 1
        one_line = outcome.result != "refused" or "\n" not in outcome.said
        sentence.record(outcome.result not in ("raised", "died") and one_line, what)
        hang.record(outcome.result != "hung", what)
        memory.record(outcome.result != "memory", what)
        if accepted:
            plain.record(not outcome.bad, what)
        if outcome.what.endswith((": external link", ": virtual", ": external")):
            inside.record(not accepted, what)
        sealed = outcome.blind or outcome.label == "converted"
        if outcome.label in intact and sealed and outcome.result in ("accepted", "refused"):
            intact[outcome.label].record(outcome.right, what)
    sentence.note = "refused/accepted: " + ", ".join(
        f"{label} {no}/{yes}" for label, (no, yes) in counts.items()
    )
    return [sentence, hang, memory, plain, inside, *intact.values()]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(Bench(Path(place)).trial(sys.argv[1], int(sys.argv[2])))
