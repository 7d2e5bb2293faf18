"""What the experiments share: a run that goes on where it stopped, and the summary that is committed of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlpd_gx import settings
from rlpd_gx.config import Config
from rlpd_gx.loop.resume import Saver, resume
from rlpd_gx.loop.run_folder import RunFolder
from rlpd_gx.loop.task import Task
from rlpd_gx.loop.train import Trainer


def finish(folder: Path, config: Callable[[], Config], command: str) -> tuple[Trainer, dict[str, Any]]:
    """Begin a run, or go on with the one in the folder, to its end; its trainer, and a summary."""
    if (folder / "config.json").exists():
        trainer, save, notes = resume(folder)
        print(*notes, sep="\n")
    else:
        chosen = config()
        trainer = Trainer(Task(chosen), RunFolder.create(folder, chosen, command))
        save = Saver(trainer.folder)
        trainer.begin()
        save(trainer)
    result = trainer.train(save)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    used = settings.flat(trainer.task.config)
    used["offline"] = Path(used["offline"]).name
    return trainer, {
        "command": command,
        "settings": used,
        "curve": {row["step"]: row["returns"] for row in rows if row["kind"] == "evaluation"},
        **result,
    }


def write(path: Path, summary: dict[str, Any]) -> None:
    """A summary as a small file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(summary, indent=1) + "\n")
