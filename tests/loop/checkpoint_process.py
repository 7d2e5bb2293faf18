"""A run in small: steps into a ring, segments and checkpoints back to back, until somebody kills it."""

import sys
from pathlib import Path

import numpy as np
import torch

from rlpd_gx.errors import GxError
from rlpd_gx.loop.checkpoint import Checkpoints
from rlpd_gx.replay.ring import Ring
from rlpd_gx.replay.segments import Segments
from rlpd_gx.replay.timeline import Layout
from rlpd_gx.types import Transition

LAYOUT = Layout(np.dtype((np.float32, (40,))), np.dtype((np.float32, (2,))), np.dtype((np.float32, (3,))))
STEPS_BETWEEN = 25


class Run:
    """Everything in it follows from `step`: after a resume it must be what it would have been."""

    def __init__(self, folder: Path, ring_rows: int = 300) -> None:
        self.checkpoints = Checkpoints(folder / "checkpoints")
        self.segments = Segments(folder / "replay")
        self.ring = Ring(LAYOUT, ring_rows, lanes=2)
        self.step = 0
        self.weights = torch.zeros(1_000_000)  # most of the time goes into writing them

    def resume(self) -> tuple[str, ...]:
        loaded = self.checkpoints.load()
        self.step, self.weights = loaded.step, loaded.state["weights"]
        self.segments.restore(self.ring, loaded.state["segments"], loaded.state["ring"])
        return loaded.notes

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            if self.step % 40 == 0:
                self.ring.begin(np.full((2, 40), self.step, np.float32))
            self.step += 1
            number, flags = np.full(2, self.step, np.float32), np.zeros(2, np.bool_)
            self.ring.add(
                Transition(
                    proposed_action=np.full((2, 2), self.step, np.float32),
                    executed_action=np.full((2, 2), -self.step, np.float32),
                    reward=number,
                    terminated=flags,
                    truncated=flags,
                    margin=number,
                    unsafe_event=flags,
                    next_observation=np.full((2, 40), self.step, np.float32),
                    next_safe_set=np.full((2, 3), self.step, np.float32),
                    executed=~flags,
                )
            )
        self.weights += self.step

    def save(self) -> None:
        self.segments.append(self.ring)
        state = {
            "weights": self.weights,
            "ring": self.ring.state()[1],
            "segments": self.segments.names,
        }
        self.checkpoints.save(self.step, state, self.segments.files)
        self.segments.prune(self.checkpoints.files())


def main(folder: Path) -> None:
    run = Run(folder)
    try:
        run.resume()
    except GxError as error:
        print(error, flush=True)
    while True:
        run.advance(STEPS_BETWEEN)
        run.save()
        print(run.step, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
