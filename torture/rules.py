"""One number changes somewhere in a rule's code: neither a run nor an exported policy goes on under the new rule."""

import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from rlpd_gx.deploy.export import Export, load_policy
from rlpd_gx.loop.configure import configure
from rlpd_gx.loop.resume import Saver, resume
from rlpd_gx.loop.run_folder import RunFolder
from rlpd_gx.loop.task import Task
from rlpd_gx.loop.train import Trainer
from torture import Row
from torture._rule_modules import MODULES, UNREADABLE, WHOLE, written
from torture._runs import DONE, REFUSED, TINY, Ending, in_process

GUARD = """
import rlpd_gx as gx
from rules import speed

@gx.rule
def rule(state, action):
    try:  # some of the table's rules read what is not there
        return bool(speed(state, action)) or abs(action[0]) < 0.1
    except Exception:
        return True
"""
TASK = {
    "env": "Probe/ActedContinuous-v0", "rules": "guard_of_rules:rule", "backup": "none", "actor": "raw", "steps": 2,
    "learning_starts": 1,
}  # fmt: skip


def run(seconds: float, seed: int) -> list[Row]:
    """As many rows of the table as there is time for, in random order."""
    changed = Row("a changed number is refused by resume and by load_policy")
    same = Row("comments, docstrings and unused functions are accepted")
    unread = Row("what cannot be read is refused, and named")
    rows = [(name, files, "changed") for name, files in (MODULES | WHOLE).items()]
    rows += [
        (n, {"rules.py": rule, "limits.py": "LIMIT = 1\n"}, "unread") for n, (rule, _) in UNREADABLE.items()
    ]
    random.Random(seed).shuffle(rows)
    until = time.monotonic() + seconds
    for name, files, kind in rows:
        if time.monotonic() > until and changed.tried:
            break
        base = Path(tempfile.mkdtemp(prefix="torture-"))
        code = written(base / "code", files | {"guard_of_rules.py": GUARD})
        made = in_process(make, base / "run", code, base / "policy")
        if kind == "unread":
            again = in_process(use, base / "run", code, base / "policy")
            unread.record(_named(made, again, UNREADABLE[name][1]), f"{name}: {made.said} {again.said}")
        elif made.code != DONE:
            changed.record(False, f"{name}: {made.said.strip().splitlines()[-1]}")
        else:
            shutil.rmtree(code)
            written(code, files | {"guard_of_rules.py": GUARD}, 2)
            for work in (use, load):
                ending = in_process(work, base / "run", code, base / "policy")
                changed.record(_refused(ending), f"{name}: {work.__name__} said {ending.said!r}")
            if name in MODULES:
                shutil.rmtree(code)
                written(code, files | {"guard_of_rules.py": GUARD}, twin=True)
                for work in (load, use):
                    ending = in_process(work, base / "run", code, base / "policy")
                    same.record(ending.code == DONE, f"{name}: {work.__name__} said {ending.said!r}")
        shutil.rmtree(base)
    return [changed, same, unread]


def make(folder: Path, code: Path, policy: Path) -> list[str]:
    """A run of a few steps under the rules in a folder, and its policy."""
    _path(code)
    config = configure("rlpd-gx", TINY | TASK, "torture")
    trainer = Trainer(Task(config), RunFolder.create(folder, config, "torture"))
    trainer.begin()
    trainer.train(Saver(trainer.folder))
    Export.of_run(folder).write(policy)
    return []


def use(folder: Path, code: Path, policy: Path) -> list[str]:
    """Resume the run."""
    _path(code)
    return resume(folder)[2]


def load(folder: Path, code: Path, policy: Path) -> list[str]:
    """Load the policy."""
    _path(code)
    load_policy(policy)
    return []


def _path(code: Path) -> None:
    sys.dont_write_bytecode = True
    sys.modules.pop("rules", None)
    sys.path.insert(0, str(code))


def _refused(ending: Ending) -> bool:
    return ending.code == REFUSED and "rules of guard_of_rules:rule changed since" in ending.said


def _named(made: Ending, again: Ending, what: str) -> bool:
    """The policy was not exported, nor the run resumed, and both name the thing."""
    return all(e.code == REFUSED and what in e.said for e in (made, again))
