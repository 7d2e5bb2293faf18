"""The project itself: layers, quick start, public names. The pages are in test_docs.py."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rlpd_gx as gx

ROOT = Path(__file__).parent.parent
LINTER = Path(sys.executable).parent / "lint-imports"


def lint_imports(folder):
    return subprocess.run(
        [LINTER, "--no-cache"], cwd=folder, capture_output=True, text=True, env={"PYTHONPATH": "src"}
    )


def test_guardian_and_learner_cannot_import_each_other():
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout
    assert "The Guardian does not know the Learner, nor the reverse KEPT" in result.stdout


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("guardian", "learner"),
        ("learner", "guardian"),
        ("safe_sets", "rules"),
        ("metrics", "guards"),
        ("guards", "loop"),
        ("loop", "deploy"),
        ("deploy", "api"),
    ],
)
def test_a_forbidden_import_is_caught(tmp_path, where, what):
    shutil.copytree(ROOT / "src", tmp_path / "src")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "src" / "rlpd_gx" / where / "intruder.py").write_text(f"import rlpd_gx.{what}\n")
    result = lint_imports(tmp_path)
    assert result.returncode != 0
    assert "BROKEN" in result.stdout


def test_importing_and_helping_load_nothing_heavy():
    for code in ("import rlpd_gx", "import rlpd_gx.cli"):
        script = f"{code}; import sys; print(sorted(set(sys.modules) & {{'torch', 'numpy', 'gymnasium', 'scipy'}}))"
        result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert result.stdout.strip() == "[]"


def test_every_public_name_is_there():
    for name in gx.__all__:
        getattr(gx, name)
    with pytest.raises(AttributeError, match="no attribute 'banana'"):
        gx.banana  # noqa: B018


def test_make_has_the_targets_of_the_readme():
    makefile = (ROOT / "Makefile").read_text()
    assert all(
        re.search(rf"^{target}:", makefile, re.M) for target in ("run", "test", "torture", "lint", "bench")
    )
