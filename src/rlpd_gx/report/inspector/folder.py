"""All runs below one folder, kept up to date."""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rlpd_gx.errors import GxError
from rlpd_gx.report.inspector.run import OVERLAYS, WatchedRun, held_locks
from rlpd_gx.trees import Json

FILES = ("config.json", "metrics.jsonl", "result.json")
TELL_SECONDS = 0.3
DEPTH, MOST_FOLDERS, MOST_RUNS = 4, 5_000, 500


class Folder:
    """Finds runs, reads what is new in them, and wakes the threads that wait for a change."""

    def __init__(self, root: Path, only: Sequence[Path] = ()) -> None:
        if not root.is_dir():
            raise GxError(
                f"{root}: there is no such folder; give the folder of a run, or one that holds runs"
            )
        self.root, self.only = root.resolve(), only
        self.runs: dict[str, WatchedRun] = {}
        self.version = 0
        self.unread = 0
        self.changed = threading.Condition()
        self.lock = threading.RLock()

    def refresh(self) -> list[str]:
        """Look for new runs and new lines; returns the names of runs that changed.

        Pages see each run as soon as it has been read: the first time, a large folder takes seconds.
        """
        found, held = dict(find_runs(self.root)), held_locks()
        if self.only:
            found = {name: path for name, path in found.items() if path in self.only}
        with self.lock:
            names = [name for name in self.runs if name not in found]
            for name in names:
                del self.runs[name]
        told, pause = 0, TELL_SECONDS
        due = time.monotonic() + pause
        for number, (name, path) in enumerate(found.items(), 1):
            with self.lock:
                known = self.runs.get(name)
                run = known or WatchedRun(name, path, self.root)
                if run.refresh(held) or known is None:  # a run in which nothing can be read is news too
                    names.append(name)
                self.runs[name] = run
                self.unread = len(found) - number
            if len(names) > told and (time.monotonic() > due or number == len(found)):
                # drawing a page again and again would take longer than reading
                told, pause = (len(names), 2 * pause)
                due = time.monotonic() + pause
                self._tell()
        if len(names) > told:
            self._tell()
        return names

    def _tell(self) -> None:
        with self.changed:
            self.version += 1
            self.changed.notify_all()

    def overview(self) -> Json:
        """All runs in short."""
        with self.lock:
            return {
                "folder": self.root.name or str(self.root),
                "version": self.version,
                "unread": self.unread,
                "runs": [run.summary() for run in self.runs.values()],
                "overlays": list(OVERLAYS),
            }

    def overlay(self, name: str) -> Json:
        """One curve of every run."""
        if name not in OVERLAYS:
            raise KeyError(name)
        with self.lock:
            return {run.name: run.overlay(name) for run in self.runs.values()}

    def detail(self, name: str) -> Json:
        """One run in full."""
        with self.lock:
            return self.runs[name].detail()


def find_runs(root: Path) -> Iterator[tuple[str, Path]]:
    """Name and path of every run folder at most `DEPTH` below; links are not followed."""
    visited = found = 0
    level = [root]
    for _ in range(DEPTH + 1):
        below: list[Path] = []
        for folder in level:
            visited += 1
            if visited > MOST_FOLDERS or found >= MOST_RUNS:
                return
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except OSError:
                continue
            if any(entry.name in FILES and entry.is_file(follow_symlinks=False) for entry in entries):
                found += 1
                yield _name(folder, root), folder
                continue
            below += [
                Path(entry.path)
                for entry in entries
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
            ]
        level = below


def _name(folder: Path, root: Path) -> str:
    """The path below the root, as text that any page can hold."""
    name = root.name if folder == root else folder.relative_to(root).as_posix()
    return os.fsencode(name).decode("utf-8", "backslashreplace")
