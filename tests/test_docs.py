"""The pages: every command and snippet runs, every name, flag and link exists, every promise names its test.

Blocks of a page run in order in one folder. A Python block whose first line is `# name.py` is written to that file;
the others share their names. A block that cannot run here has `<!-- not run: why -->` above it and a row in `NOT_RUN`.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import rlpd_gx as gx
from rlpd_gx import guards
from rlpd_gx.cli import COMMANDS, main
from rlpd_gx.config import PRESETS
from rlpd_gx.loop.guard_identity import OPTIONS
from rlpd_gx.settings import SETTINGS

ROOT = Path(__file__).parent.parent
ATARI = "docs/atari.md"  # its commands take minutes; tests/cli/test_atari*.py and tests/envs/atari run shorter ones
NAMES = ["README.md", *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md")))]
NAMES.remove(ATARI)
BLOCK = re.compile(r"(?:<!-- not run: (?P<reason>.+?) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)```", re.S)
NOT_RUN = {  # page, first line of the block -> the reason given there
    (
        "docs/experiments.md",
        "rlpd-gx reproduce ablation --scale smoke",
    ): "takes a minute; tests/experiments runs it",
    ("docs/inspector.md", "rlpd-gx watch runs"): "serves until Ctrl-C",
    ("docs/training.md", "rlpd-gx train --config examples/pong.yaml --compare"): (
        "takes minutes; `make run` is this command"
    ),
    ("docs/first-run.md", "make run"): "takes minutes",
    ("docs/first-run.md", "rlpd-gx train --config examples/pong.yaml --compare --seed 3 --steps 20000"): (
        "takes minutes"
    ),
    ("docs/first-run.md", "rlpd-gx train --config examples/hopper.yaml --compare"): "takes minutes",
    ("docs/tutorial.md", "pip install '.[sb3,minari,video]'"): "installs",
}
# flags of torture, bench and experiments
OTHER_PROGRAMS = {"--only", "--minutes", "--large", "--peer", "--data"}


@dataclass
class Block:
    language: str
    code: str
    reason: str | None

    @property
    def first(self) -> str:
        return self.code.splitlines()[0]


def blocks(name: str) -> list[Block]:
    found = BLOCK.finditer((ROOT / name).read_text())
    return [Block(m["language"], m["code"], m["reason"]) for m in found]


def commands(block: Block) -> list[list[str]]:
    """The lines of a shell block that call `rlpd-gx`, in words."""
    lines = block.code.replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines if line.strip()]
    return [line for line in words if line[:1] == ["rlpd-gx"]]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder such as a reader's: with the examples, and a cache of its own."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLPD_GX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def run(words: list[str], monkeypatch) -> int:
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code or 0


def run_page(name, found, folder, monkeypatch, capfd) -> None:
    names = {"__name__": "page"}
    for block in found:
        if block.reason is not None:
            continue
        if block.language == "python":
            if file := re.fullmatch(r"# (\w+\.py)", block.first):
                (folder / file[1]).write_text(block.code)
            else:
                exec(compile(block.code, name, "exec"), names)
        for words in commands(block) if block.language == "sh" else ():
            code = run(words, monkeypatch)
            assert code == 0, (shlex.join(words), capfd.readouterr().err)


@pytest.mark.parametrize("name", [name for name in NAMES if any(not b.reason for b in blocks(name))])
def test_every_block_runs(name, folder, monkeypatch, capfd):
    run_page(name, blocks(name), folder, monkeypatch, capfd)


@pytest.mark.parametrize(
    "block",
    [
        Block("sh", "rlpd-gx train --env CartPole-v1 --lanes 2\n", None),
        Block("sh", "rlpd-gx data audit \\\n    no-such-file\n", None),
        Block("python", "import rlpd_gx as gx\nassert gx.train is None\n", None),
    ],
)
def test_a_block_that_fails_is_caught(block, folder, monkeypatch, capfd):
    with pytest.raises(AssertionError):
        run_page("page", [block], folder, monkeypatch, capfd)


def test_what_is_not_run_is_listed_with_its_reason():
    found = {
        (name, block.first): block.reason
        for name in NAMES
        for block in blocks(name)
        if block.reason is not None
    }
    assert found == NOT_RUN


def test_every_shell_block_is_seen():
    """`sh` is the one name of shell blocks, and the lines in them are ours, `make`, `pip` or `python -m`."""
    for name in NAMES:
        for block in blocks(name):
            assert block.language in ("sh", "python", "json", "toml", "yaml", "text", ""), (
                name,
                block.language,
            )
            if block.language == "sh":
                lines = block.code.replace("\\\n", " ").splitlines()
                assert all(re.match(r"rlpd-gx |make |pip |python -m |#|$", line) for line in lines), (
                    name,
                    lines,
                )


def test_every_flag_exists():
    from rlpd_gx.cli.arguments import Parser

    known = {setting.flag for setting in SETTINGS.values()} | {"--version"} | OTHER_PROGRAMS
    known |= {f"--no-{setting.flag[2:]}" for setting in SETTINGS.values() if setting.type is bool}
    for command, (target, _) in COMMANDS.items():
        module, _, function = target.partition(":")
        imported = __import__(f"rlpd_gx.cli.{module}", fromlist=[function])
        for action in Parser(getattr(imported, function), command)._actions:
            known |= set(action.option_strings)
    for name in NAMES:
        used = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", (ROOT / name).read_text()))
        assert used <= known, (name, used - known)


def test_every_public_name_exists():
    for name in NAMES:
        for dotted in set(re.findall(r"\bgx((?:\.[A-Za-z_]\w*)+)", (ROOT / name).read_text())):
            thing = gx
            assert dotted.split(".")[1] in gx.__all__, (name, f"gx{dotted}")
            for part in dotted[1:].split("."):
                assert hasattr(thing, part), (name, f"gx{dotted}")
                thing = getattr(thing, part)


def test_every_setting_preset_and_guard_is_described_and_none_besides():
    page = (ROOT / "docs" / "training.md").read_text()
    table = page.partition("## Settings")[2].partition("\n## ")[0]
    named = [
        name for cell in re.findall(r"^\| (`.+?) \|", table, re.M) for name in re.findall(r"`(\w+)`", cell)
    ]
    assert sorted(named) == sorted(SETTINGS)
    rows = re.findall(r"^\| `([a-z-]+)` \|", page.partition("## Presets")[2].partition("\n## ")[0], re.M)
    assert sorted(rows) == sorted(PRESETS)
    rows = re.findall(r"^\| `([a-z-]+)` \|", page.partition("## Guards")[2].partition("\n## ")[0], re.M)
    assert sorted(rows) == sorted(guards.NAMES)


def test_the_options_of_load_policy_are_those_that_it_takes():
    text = " ".join((ROOT / "docs/deploy.md").read_text().split())
    listed = re.search(r"the options that their module had when the policy was trained: (.+?)\. ", text)
    assert sorted(re.findall(r"`(\w+)`", listed[1])) == sorted(OPTIONS)


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", [*NAMES, "CONTRIBUTING.md", "CHANGELOG.md"])
def test_every_link_leads_somewhere(name):
    for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / name).read_text()):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        page = (ROOT / name).parent / path if path else ROOT / name
        assert page.exists(), (name, target)
        assert not anchor or anchor in anchors(page), (name, target)


def test_every_file_named_exists():
    for name in NAMES:
        text = (ROOT / name).read_text()
        for path in set(re.findall(r"`((?:tests|torture|results|src|bench|docs|examples)/[\w./-]+)`", text)):
            assert "NAME" in path or (ROOT / path).exists(), (name, path)


def test_every_promise_links_to_the_test_that_counts_it():
    text = (ROOT / "README.md").read_text().partition("## What is guaranteed")[2].partition("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("| **")]
    assert len(rows) >= 6
    for row in rows:
        links = re.findall(r"\[`(\w+)`\]\((tests/[\w/]+\.py|torture/\w+\.py)\)", row)
        assert any(path.startswith("tests/") for _, path in links), row
        for test, path in links:
            code = (ROOT / path).read_text()
            assert (f"def {test}(" in code) if path.startswith("tests/") else (Path(path).stem == test), (
                row,
                test,
            )


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"([\w-]+\.md)", (ROOT / "mkdocs.yml").read_text()))
    assert listed - {"changelog.md"} == {Path(name).name for name in [*NAMES, ATARI] if name != "README.md"}


def test_the_site_is_built_strictly_and_loads_nothing_from_elsewhere(tmp_path):
    """Broken links and missing docstring targets stop the build; the pages work without a network."""
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    pages = list((tmp_path / "site").glob("*.html"))
    assert len(pages) > 15
    loaded = re.compile(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"?(?:https?:)?//(?!localhost)")
    for page in pages:
        found = loaded.search(page.read_text())
        assert found is None, (page.name, found)
    reference = (tmp_path / "site" / "api.html").read_text()
    assert all(f'id="rlpd_gx.{name}"' in reference for name in ("api.train", "api.Run", "types.Verdict"))


def test_words_a_colleague_would_not_say():
    odd = re.compile(
        r"\b(anew|so many|is told|are told|hardly|by heart|dear|interven(?!e_action)\w+|num_lanes)\b", re.I
    )
    for name in NAMES:
        found = odd.search((ROOT / name).read_text())
        assert found is None, (name, found)


def test_the_tables_of_the_readme_are_those_of_the_results():
    def tables(text):
        """For each table: (row, column) -> cell, without its interval."""
        for block in re.findall(r"(?:^\|.*\|\n)+", text, re.M):
            head, _, *lines = [
                [cell.strip() for cell in line.strip("|\n").split("|")] for line in block.splitlines()
            ]
            yield {
                (line[0], name): cell.partition(" [")[0]
                for line in lines
                for name, cell in zip(head[1:], line[1:], strict=True)
            }

    chapter = (ROOT / "README.md").read_text().partition("## Results\n")[2].partition("\n## ")[0]
    shown, measured = [*tables(chapter)], [*tables((ROOT / "RESULTS.md").read_text())]
    assert shown
    for table in shown:
        assert any(table.items() <= found.items() for found in measured), table
