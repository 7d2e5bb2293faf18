"""A time limit for code that cannot be interrupted: it runs in a thread of its own, which may be left behind."""

import queue
import threading
from collections.abc import Callable
from typing import Any


class Missed(Exception):
    """The answer did not come in time."""


class Deadline:
    """Runs one call at a time. While a late call is still running, every further one is missed at once."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue]] = queue.SimpleQueue()
        self._busy = threading.Event()
        self._thread: threading.Thread | None = None

    def run(self, call: Callable[[], Any]) -> Any:
        """The result of the call, its exception, or `Missed`."""
        if self._busy.is_set():
            raise Missed(f"the rules are still busy with an earlier state (deadline {self.seconds:g} s)")
        if self._thread is None:
            # A daemon: a rule that hangs must not keep the process from ending.
            self._thread = threading.Thread(target=self._serve, name="rlpd-gx rules", daemon=True)
            self._thread.start()
        answer: queue.SimpleQueue = queue.SimpleQueue()
        self._busy.set()
        self._calls.put((call, answer))
        try:
            result, error = answer.get(timeout=self.seconds)
        except queue.Empty:
            raise Missed(f"the rules did not answer within {self.seconds:g} s") from None
        if error is not None:
            raise error
        return result

    def _serve(self) -> None:
        while True:
            call, answer = self._calls.get()
            try:
                outcome: tuple[Any, BaseException | None] = (call(), None)
            except BaseException as error:  # handed to whoever waits
                outcome = (None, error)
            self._busy.clear()
            answer.put(outcome)
