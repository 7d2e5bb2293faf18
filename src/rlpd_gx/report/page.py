"""Pages without a script: a style, and sections of HTML."""

from html import escape
from importlib.resources import files


def document(title: str, about: str, body: str) -> str:
    """A page with its style; `body` is HTML."""
    style = files("rlpd_gx.report").joinpath("style.css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)} – rlpd-gx</title>
<style>{style}</style>
</head>
<body>
<header>
<p class="eyebrow">RLPD-GX</p>
<h1>{escape(title)}</h1>
<p class="about">{escape(about)}</p>
</header>
<main>
{body}
</main>
</body>
</html>
"""


def section(title: str, content: str) -> str:
    """A part of the page under its title."""
    return f"<section><h2>{escape(title)}</h2>{content}</section>"
