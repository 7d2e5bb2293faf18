"""Runs beside each other: `rlpd-gx train --compare` trains them, `rlpd-gx compare` shows any."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Annotated

from rlpd_gx.cli.arguments import Argument
from rlpd_gx.errors import GxError

FILM_STEPS = 500  # half a minute, enough to see what the guard does
LAST_WORDS = ("rlpd-gx: ", "stopped by ")  # how the last line of a run that failed begins

Command = Sequence[str]
Process = subprocess.Popen[str]
Show = Callable[[str, str], None]
"""What shows a line of a run: its name, the line."""


def compare(
    runs: Annotated[list[Path], Argument("Folders of two runs or more.")],
) -> None:
    """Show runs side by side: a table, and one page with curves and videos.

    The page is `comparison.html` in the first folder. Videos need the extra `video`, and an environment
    that can be drawn.
    """
    from rlpd_gx.report import write_comparison
    from rlpd_gx.report.records import read_run
    from rlpd_gx.report.words import comparison_text

    if len(runs) < 2:
        raise GxError("give the folders of two runs or more")
    found = [read_run(run) for run in runs]
    for run in found:
        for note in run.notes:
            print(f"note: {run.folder}: {note}", file=sys.stderr)
    print(comparison_text(found))
    obstacles = dict.fromkeys(filter(None, map(_film, runs)))  # usually the same for all
    for obstacle in obstacles:
        print(f"no video: {obstacle}", file=sys.stderr)
    print(f"All on one page: {write_comparison(runs)}")


def train_together(commands: Mapping[str, Command], *, quiet: bool = False) -> None:
    """Run several `rlpd-gx` commands at once, in a process each, and show their progress together.

    Each is an ordinary run. Where one fails, the others are stopped with a checkpoint.
    """
    with _display(list(commands), quiet) as show:
        running = {name: _started(command) for name, command in commands.items()}
        lines: dict[str, list[str]] = {name: [] for name in commands}
        stopping = Event()

        def stop(number: int = signal.SIGTERM, frame: object = None) -> None:
            stopping.set()
            for process in running.values():
                if process.poll() is None:
                    process.send_signal(number)

        def follow(name: str) -> None:
            with running[name] as process:
                for line in process.stderr or ():
                    lines[name].append(line.rstrip())
                    if not line.startswith(LAST_WORDS):
                        show(name, line.rstrip())
            if process.returncode != 0 and not stopping.is_set():
                stop()

        followers = [Thread(target=follow, args=(name,)) for name in commands]
        with _on_signals(stop):
            for follower in followers:
                follower.start()
            for follower in followers:
                follower.join()
    codes = {name: code for name, process in running.items() if (code := process.returncode)}
    if codes:
        mistakes = [name for name, code in codes.items() if code == 2] or list(codes)
        said = dict.fromkeys(lines[name][-1] for name in mistakes if lines[name])  # often all the same
        print("\n".join(said), file=sys.stderr)
        code = codes[mistakes[0]]
        raise SystemExit(code if code > 0 else 128 - code)


def _film(run: Path) -> str | None:
    """Write `play.mp4` into a run folder, or return why that is impossible."""
    from rlpd_gx.deploy.play import play
    from rlpd_gx.envs.description import describe
    from rlpd_gx.loop.run_folder import RunFolder
    from rlpd_gx.report import FILM

    try:
        sample = describe(RunFolder.open(run)[1].run.env).sample_in_evaluation
        play(run, run / FILM, seed=2_000_000, sample=sample, max_steps=FILM_STEPS)
    except GxError as error:
        return str(error)
    return None


def _started(command: Command) -> Process:
    return subprocess.Popen(
        [sys.executable, "-m", "rlpd_gx", *command],
        stdout=subprocess.DEVNULL,  # results are printed side by side when all have ended
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches it once, from us
    )


@contextmanager
def _on_signals(handler: Callable[[int, object], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def _display(names: Sequence[str], quiet: bool) -> Iterator[Show]:
    """A live line for each run on a terminal; elsewhere plain lines that begin with the name of the run."""
    width = max(map(len, names))
    if quiet or not sys.stderr.isatty():
        yield lambda name, line: print(f"{name:{width}}  {line}", file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    last = dict.fromkeys(names, "starting")
    with Live(console=Console(stderr=True), transient=True) as live:

        def show(name: str, line: str) -> None:
            last[name] = line
            live.update(Text("\n".join(f"{name:{width}}  {text}" for name, text in last.items())))

        yield show
