"""Pages without a script: a style, and parts of HTML."""

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

WINDOW = 20  # episodes in the running mean of returns


def document(title: str, about: str, body: str, kind: str = "results") -> str:
    """A page with its style; `body` is HTML."""
    style = files("rlpd_gx.report").joinpath("style.css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)} – {kind}</title>
<style>{style}</style>
</head>
<body>
<header>
<p class="eyebrow">RLPD-GX {kind}</p>
<h1>{escape(title)}</h1>
<p class="about">{escape(about)}</p>
</header>
<main>
{body}
</main>
</body>
</html>
"""


def tiles_html(tiles: Iterable[tuple[str, str, str]]) -> str:
    """Large figures: a name, the figure, and a line below it."""
    cells = "".join(
        f'<div class="tile"><dt>{escape(name)}</dt><dd>{escape(value)}</dd><p>{escape(note)}</p></div>'
        for name, value, note in tiles
    )
    return f'<dl class="tiles">{cells}</dl>'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column names the rows; an empty cell is a dash."""
    names = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f'<td class="text">{escape(value or "–")}</td>' for value in values)
        + "</tr>"
        for name, *values in rows
    )
    return f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"


def section(title: str, content: str) -> str:
    """A part of the page under its title."""
    return f"<section><h2>{escape(title)}</h2>{content}</section>"
