"""A time limit for code that cannot be interrupted: it runs in a thread of its own, which may be left behind."""

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Missed(Exception):
    """The answer did not come in time."""


class Clock:
    """How much time is left of a limit; `None` is no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def left(self) -> float | None:
        """Seconds."""
        return None if self._end is None else max(self._end - time.monotonic(), 0.0)


class Worker:
    """Runs one call at a time. While a late call is still running, every further one is missed at once."""

    def __init__(self, what: str) -> None:
        self.what = what  # for the message
        self._start()

    def _start(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], object], queue.SimpleQueue]] = queue.SimpleQueue()
        self._turn = threading.Lock()  # held while a caller waits for an answer
        self._busy = threading.Event()  # set while a call runs; if it is late, still set at the next call
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def __reduce__(self) -> tuple[object, ...]:  # threads cannot be copied
        return Worker, (self.what,)

    def run(self, call: Callable[[], T], seconds: float | None) -> T:
        """The result of the call, its exception, or `Missed`. Without a limit it runs right here."""
        if seconds is None:
            return call()
        if self._process != os.getpid():  # threads do not survive a fork
            self._start()
        clock = Clock(seconds)
        if seconds <= 0:
            raise Missed(f"{self.what} could not be asked: no time was left")
        if not self._turn.acquire(timeout=seconds):
            raise Missed(f"{self.what} did not answer within {seconds:g} s")
        try:
            return self._run(call, clock.left or 0.0, seconds)
        finally:
            self._turn.release()

    def _run(self, call: Callable[[], T], left: float, seconds: float) -> T:
        if self._busy.is_set():
            raise Missed(f"{self.what} could not be asked: still busy with an earlier state")
        if self._thread is None:
            # A daemon: a rule that hangs must not keep the process from ending.
            self._thread = threading.Thread(target=self._serve, name=f"rlpd-gx {self.what}", daemon=True)
            self._thread.start()
        answer: queue.SimpleQueue = queue.SimpleQueue()
        self._busy.set()
        self._calls.put((call, answer))
        try:
            result, error = answer.get(timeout=left)
        except queue.Empty:
            raise Missed(f"{self.what} did not answer within {seconds:g} s") from None
        if error is not None:
            raise error
        return result

    def _serve(self) -> None:
        while True:
            call, answer = self._calls.get()
            try:
                outcome: tuple[object, BaseException | None] = (call(), None)
            except BaseException as error:  # raised in the waiting caller
                outcome = (None, error)
            self._busy.clear()
            answer.put(outcome)
