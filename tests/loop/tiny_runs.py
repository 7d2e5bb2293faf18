"""Runs of a second, for tests that need a trained policy and not a good one."""

from rlpd_gx.loop.configure import configure
from rlpd_gx.loop.resume import Saver
from rlpd_gx.loop.run_folder import RunFolder
from rlpd_gx.loop.task import Task
from rlpd_gx.loop.train import Trainer

SMALL = {
    "steps": 60,
    "hidden_sizes": (16, 16),
    "batch_size": 16,
    "learning_starts": 20,
    "utd": 1,
    "ensemble_size": 2,
    "evaluation_episodes": 1,
    "evaluate_every": 0,
    "device": "cpu",
}


def tiny_run(folder, *, name="rlpd-gx", **settings):
    """Train for a moment; the folder of the run."""
    config = configure(name, SMALL | settings, "test")
    trainer = Trainer(Task(config), RunFolder.create(folder, config, "rlpd-gx train"))
    trainer.begin()
    trainer.train(Saver(trainer.folder))
    return folder
