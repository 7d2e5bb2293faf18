"""A notebook: cells as a person types them, run by a real kernel."""

from pathlib import Path

import pytest

NEEDED = "a notebook is run by nbclient and ipykernel, which are not installed"
nbformat = pytest.importorskip("nbformat", reason=NEEDED)
nbclient = pytest.importorskip("nbclient", reason=NEEDED)
pytest.importorskip("ipykernel", reason=NEEDED)
pytestmark = pytest.mark.filterwarnings("ignore")  # those of the machinery of notebooks

TASK = """
import gymnasium as gym
import numpy as np
import rlpd_gx as gx

class Cart(gym.Env):
    observation_space = gym.spaces.Box(-9, 9, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.v, self.t = self.np_random.uniform(-1, 1), 0.0, 0
        return self.seen(), {}

    def step(self, action):
        self.v = float(np.clip(self.v + 0.3 * action[0], -1, 1))
        self.x, self.t = float(np.clip(self.x + 0.1 * self.v, -9, 9)), self.t + 1
        return self.seen(), -abs(self.x), False, self.t >= 20, {}

    def seen(self):
        return np.array([self.x, self.v], np.float32)

@gx.bounds_rule
def gentle(observation):
    limit = 0.2 if abs(observation[1]) > 0.3 else 0.6
    return [-limit], [limit]
"""
TRAIN = """
run = gx.train(Cart, gentle, steps=60, out="run", utd=1, batch_size=8, hidden_sizes=(8,), ensemble_size=2,
               learning_starts=8, evaluation_episodes=1, log_every=20, device="cpu")
run
"""


def shown(folder: Path, *cells: str) -> tuple[str, list[str]]:
    """What the cells print, and what the last values of them show; an error in a cell is an error here."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.outputs]
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    return printed, [output.data["text/plain"] for output in outputs if "data" in output]


def test_training_shows_its_progress_and_goes_on_in_another_kernel(tmp_path: Path) -> None:
    printed, values = shown(
        tmp_path,
        TASK,
        TRAIN,
        "run.evaluate(episodes=1)['steps']",
        "run.report().name",
        "run.policy.act([0, 1]).action",
    )
    steps = [line.split()[1] for line in printed.splitlines() if line.startswith("step ")]
    assert steps == ["20/60", "40/60", "60/60"]
    assert "Traceback" not in printed
    assert values[0].startswith("Run('run', return ")
    assert values[1:3] == ["20", "'report.html'"]
    again = "run = gx.Run('run', env=Cart, rules=gentle).resume(steps=80); run.result['steps']"
    printed, values = shown(tmp_path, TASK, again)
    assert "resuming at step 60" in printed
    assert values == ["80"]
