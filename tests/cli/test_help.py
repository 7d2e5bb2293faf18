"""Help shows what is in force, cuts nothing, and loads nothing heavy."""

import os
import re
import subprocess
import sys

import pytest

from rlpd_gx import __version__, guards
from rlpd_gx.cli import COMMANDS, _note
from rlpd_gx.cli.arguments import shown
from rlpd_gx.cli.train import FIRST
from rlpd_gx.config import PRESETS
from rlpd_gx.loop.configure import configure
from rlpd_gx.settings import SETTINGS

HEAVY = ("torch", "numpy", "gymnasium", "rich", "scipy", "typer")


def help_of(*words, columns, folder):
    """What a user finds in the file after `rlpd-gx ... --help > file`."""
    with (folder / "help.txt").open("w") as file:
        environment = os.environ | {"COLUMNS": str(columns)}
        subprocess.run([sys.executable, "-m", "rlpd_gx", *words], stdout=file, env=environment, check=True)
    return (folder / "help.txt").read_text()


def entries(text):
    """Each flag with its text on one line."""
    found, flag = {}, ""
    for line in text.splitlines():
        if match := re.match(
            r"  (?:-\w, )?(--[a-z-]+)(?:, --[a-z-]+)?(?: [A-Z][A-Z,.|]*)?(?:  +(.*))?$", line
        ):
            flag = match[1]
            found[flag] = match[2] or ""
        elif line.startswith(" " * 20) and flag:
            found[flag] = f"{found[flag]} {line.strip()}".strip()
    return found


def in_brackets(text):
    """The value in force."""
    return match[1] if (match := re.search(r" \[([^\[\]]*)\]$", text)) else ""


def expected(setting, preset, **values):
    here, ruled = (shown(setting.value(configure(preset, values | more))) for more in ({}, {"rules": "a:b"}))
    if setting.name == "rules" or here == ruled:
        return "" if here == "{}" else here
    return f"{here}; with --rules: {ruled}"


@pytest.mark.parametrize("preset", PRESETS)
def test_every_value_in_force_is_shown_for_every_preset(preset, command):
    code, text, _ = command("train", "--preset", preset, "--help-all")
    assert code == 0
    found = entries(text)
    for setting in SETTINGS.values():
        assert in_brackets(found[setting.flag]) == expected(setting, preset), setting.name
    assert in_brackets(found["--preset"]) == preset


def test_flags_and_file_are_in_force_too(command, tmp_path):
    (tmp_path / "mine.toml").write_text('preset = "paper"\nutd = 4\nrules = "a:b"\n')
    found = entries(
        command("train", "--config", tmp_path / "mine.toml", "--ensemble-size=3", "--help-all")[1]
    )
    shown_values = {
        flag: in_brackets(found[flag]) for flag in ("--preset", "--utd", "--backup", "--ensemble-size")
    }
    assert shown_values == {
        "--preset": "paper",
        "--utd": "4",
        "--backup": "renormalise",
        "--ensemble-size": "3",
    }
    found = entries(command("train", "--rules=a:b", "--guard=shield", "--help-all")[1])
    assert in_brackets(found["--backup"]) == guards.find("shield").settings["backup"]


def test_the_presets_differ_in_what_is_shown(command):
    """Or a help that never looks at the preset would pass."""
    ours, theirs = (
        entries(command("train", "--preset", name, "--help-all")[1]) for name in ("rlpd-gx", "sac")
    )
    differing = {flag for flag in ours if in_brackets(ours[flag]) != in_brackets(theirs[flag])}
    assert {"--preset", "--utd", "--guard", "--backup", "--sampler", "--layer-norm"} <= differing


@pytest.mark.parametrize("columns", [60, 80])
def test_nothing_is_cut(columns, tmp_path):
    text = help_of("train", "--help-all", columns=columns, folder=tmp_path)
    assert max(map(len, text.splitlines())) <= columns
    assert "…" not in text
    words = set(re.split(r"[\s,.;\[\]]+", text))
    for setting in SETTINGS.values():
        assert {setting.flag, *setting.choices} <= words
        assert setting.help in " ".join(text.split())
    assert set(PRESETS) | set(guards.NAMES) <= words
    for title in ("Task and guard:", "Replay:", "Learner:"):
        assert title in text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_within_60_columns(name, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    code, text, error = command(*name.split(), "--help")
    assert (code, error) == (0, "")
    assert max(map(len, text.splitlines())) <= 60
    assert "--help" in entries(text)


def test_help_begins_with_what_people_use_first(command):
    text = command("train", "--help")[1]
    found = list(entries(text))
    assert found[: len(FIRST)] == [f"--{name.rstrip('_').replace('_', '-')}" for name in FIRST]
    others = {"--env-wrappers", "--compare", "--track", "--quiet", "--help", "--help-all"}
    assert set(found[len(FIRST) :]) == others


def test_text_in_brackets_is_not_swallowed(command):
    assert "stored observations [k, ...] to" in " ".join(command("train", "--help-all")[1].split())
    assert "[algorithm:]file.zip" in command("guard", "--help")[1]


@pytest.mark.parametrize("words", [[], ["--help"], ["--version"], ["train", "--help"], ["guard", "--help"]])
def test_help_loads_nothing_heavy(words):
    program = (
        "import contextlib, sys, rlpd_gx.cli\n"
        f"sys.argv = ['rlpd-gx', *{words!r}]\n"
        "with contextlib.suppress(SystemExit): rlpd_gx.cli.main()\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_groups_and_version(command):
    assert command()[0] == 2
    assert command("data")[0] == 2
    code, text, _ = command("data", "--help")
    assert code == 0
    assert "usage: rlpd-gx data COMMAND [options]" in text
    assert "`rlpd-gx data COMMAND --help`" in text
    assert "data convert" in text
    assert "usage: rlpd-gx COMMAND [options]" in command("--help")[1]
    assert "atari" not in text
    assert command("--version")[:2] == (0, f"rlpd-gx {__version__}\n")


def test_the_usage_names_every_value_without_a_flag(command):
    assert "usage: rlpd-gx watch [FOLDER] [options]" in command("watch", "--help")[1]
    assert "usage: rlpd-gx export RUN --out PATH [options]" in command("export", "--help")[1]


def test_a_setting_that_takes_a_word_or_a_number_shows_both(command):
    text = command("train", "--help-all")[1]
    for flag in ("--target-entropy", "--ood-penalty"):
        assert f"  {flag} WORD|X" in text
    assert "  --actor WORD  " in text


def test_a_warning_is_a_note_without_the_line_of_code_that_gave_it():
    assert _note(UserWarning("be careful"), UserWarning, "rules.py", 3, "code") == "note: be careful\n"
    others = _note(RuntimeWarning("overflow"), RuntimeWarning, "rules.py", 3)
    assert others == "RuntimeWarning: overflow (rules.py:3)\n"
