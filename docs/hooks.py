"""Hooks of mkdocs: the changelog is a page, and result files that pages link to are part of the site."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]


def on_files(files: Any, config: Any) -> Any:
    """Add what lies outside of docs/."""
    files.append(File.generated(config, "changelog.md", abs_src_path=str(ROOT / "CHANGELOG.md")))
    for path in sorted((ROOT / "results").rglob("*")):
        if path.is_file():
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to files outside of docs/ lead to their place in the site."""
    markdown = re.sub(r"\]\(\.\./(results/[^)]+)\)", r"](\1)", markdown)
    return markdown.replace("](../CHANGELOG.md)", "](changelog.md)").replace("](docs/", "](")
