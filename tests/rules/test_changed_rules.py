"""One number changes somewhere in a rule's own code: its fingerprint does too, in whichever process it is read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rule_modules import MODULES, UNREADABLE, WHOLE, written

Found = dict[str, tuple[str, str, list[str]]]


def fingerprints(folders: dict[str, Path], seed: int) -> Found:
    """What a new process says: for each row the fingerprint before and after the rule ran, and what is unreadable."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "rule_modules.py")],
        input=json.dumps([str(folder) for folder in folders.values()]),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {name: found[str(folder)] for name, folder in folders.items()}


@pytest.fixture(scope="module")
def processes(tmp_path_factory) -> dict[str, Found]:
    """The table in four processes: as it is, again, as twins, and with the number changed."""
    rows = (
        MODULES
        | WHOLE
        | {name: {"rules.py": rule, "limits.py": "LIMIT = 1\n"} for name, (rule, _) in UNREADABLE.items()}
    )
    variants = {"first": (1, False), "again": (1, False), "twin": (1, True), "changed": (2, False)}
    found = {}
    for seed, (variant, (number, twin)) in enumerate(variants.items()):
        base = tmp_path_factory.mktemp(variant)
        folders = {
            name: written(base / str(i), files, number, twin=twin)
            for i, (name, files) in enumerate(rows.items())
        }
        found[variant] = fingerprints(folders, seed)
    return found


@pytest.mark.parametrize("name", [*MODULES, *WHOLE])
def test_a_changed_number_changes_the_fingerprint(processes, name):
    first, again, changed = (processes[p][name] for p in ("first", "again", "changed"))
    assert first[2] == [] == changed[2]
    assert first[0] == first[1] == again[0]  # also after the rule has run
    assert changed[0] != first[0]


@pytest.mark.parametrize("name", MODULES)
def test_comments_docstrings_and_unused_functions_do_not_count(processes, name):
    assert processes["twin"][name][0] == processes["first"][name][0]


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_matches_in_no_other_process_and_is_named(processes, name):
    first, again = processes["first"][name], processes["again"][name]
    assert first[0] != again[0]
    assert any(UNREADABLE[name][1] in line for line in first[2]), first[2]
