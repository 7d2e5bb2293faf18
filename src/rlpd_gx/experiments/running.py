"""What the experiments share: their command line, a run that can be resumed, and its committed summary."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from rlpd_gx import settings
from rlpd_gx.config import Config
from rlpd_gx.loop.resume import Saver, resume
from rlpd_gx.loop.run_folder import RunFolder
from rlpd_gx.loop.task import Task
from rlpd_gx.loop.train import Trainer
from rlpd_gx.trees import Json

Command = Callable[..., None]
TRIALS: dict[str, Json] = {
    "--name": {"help": "name of the result, for trials of other settings"},
    "--settings": {"default": "{}", "help": "further settings, as JSON"},
}


def command_line(doc: str | None, run: Command, table: Command, options: dict[str, Json]) -> None:
    """`run` with its options (argparse's, by flag), --seed and --out; or `table`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("table", help=table.__doc__)
    flags = commands.add_parser("run", help=run.__doc__)
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--out", type=Path, default=Path("runs"), help="where run folders go")
    for name, option in options.items():
        flags.add_argument(name, **option)
    chosen = vars(parser.parse_args())
    (run if chosen.pop("command") == "run" else table)(**chosen)


def finish(folder: Path, config: Callable[[], Config], command: str) -> tuple[Trainer, Json]:
    """Train a run to its end, resumed if the folder holds one; its trainer, and a summary."""
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


def write(path: Path, summary: Json) -> None:
    """Write a summary as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(summary, indent=1) + "\n")
