"""The processes that replay episodes: one for each run that is looked at, made by `rlpd_gx.deploy.moments`.

Rules and environments are other people's code, and models are heavy: neither is ever loaded by the server.
"""

import json
import subprocess
import sys
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlpd_gx.errors import GxError
from rlpd_gx.trees import Json

MOST_PROCESSES = 2
MOST_FRAMES = 600  # pictures kept for each run
PATIENCE_SECONDS = 180.0


class Replayer:
    """Talks to the process that replays one run: a JSON line there; a JSON line and bytes back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.frames: OrderedDict[str, bytes] = OrderedDict()
        self.stamp = _newest_checkpoint(folder)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rlpd_gx.deploy.moments", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def episode(self, key: Json) -> Json:
        """Every step of an episode."""
        return self._ask({"do": "episode", "episode": key})[0]

    def frame(self, key: Json, step: int) -> bytes:
        """The picture of a step, as PNG."""
        name = json.dumps([key, step])
        if name not in self.frames:
            self.frames[name] = self._ask({"do": "frame", "episode": key, "step": step})[1]
            if len(self.frames) > MOST_FRAMES:
                self.frames.popitem(last=False)
        return self.frames[name]

    def polygon(self, key: Json, step: int) -> Json:
        """The outline of a safe set in two dimensions."""
        return self._ask({"do": "polygon", "episode": key, "step": step})[0]

    def attempt(self, key: Json, step: int, action: Any) -> Json:
        """The verdict on another action in the state of a step."""
        return self._ask({"do": "try", "episode": key, "step": step, "action": action})[0]

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what was not sent yet cannot be
                pipe.close()

    def _ask(self, request: Json) -> tuple[Json, bytes]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with self.lock:
            late = threading.Timer(PATIENCE_SECONDS, self.process.kill)
            late.start()
            try:
                self.process.stdin.write(json.dumps(request).encode() + b"\n")
                self.process.stdin.flush()
                answer = json.loads(self.process.stdout.readline())
                content = self.process.stdout.read(answer.pop("bytes", 0))
            except (OSError, ValueError):
                self.process.kill()
                raise GxError(
                    f"{self.folder.name}: the process that replays this run has ended, or took more than "
                    f"{PATIENCE_SECONDS:.0f} seconds"
                ) from None
            finally:
                late.cancel()
        if "error" in answer:
            raise GxError(answer["error"])
        return answer, content


class Replayers:
    """The processes in use; the one that was not asked for longest ends first."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.known: OrderedDict[Path, Replayer] = OrderedDict()

    def of(self, folder: Path, *, newest: bool = False) -> Replayer:
        """The process of a run; `newest` starts another one where the run has a newer checkpoint."""
        with self.lock:
            found = self.known.get(folder)
            if found is not None and (
                found.process.poll() is not None or (newest and found.stamp != _newest_checkpoint(folder))
            ):
                self.known.pop(folder).close()
                found = None
            if found is None:
                while len(self.known) >= MOST_PROCESSES:
                    self.known.popitem(last=False)[1].close()
                found = self.known[folder] = Replayer(folder)
            self.known.move_to_end(folder)
            return found

    def close(self) -> None:
        """End all of them."""
        with self.lock:
            for replayer in self.known.values():
                replayer.close()
            self.known.clear()


def _newest_checkpoint(folder: Path) -> str:
    return max((path.name for path in folder.glob("checkpoints/[0-9]*-step-*")), default="")
