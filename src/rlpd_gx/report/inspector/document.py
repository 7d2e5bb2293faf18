"""The page itself: one HTML document without any other file, live or written to disk."""

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files

from rlpd_gx.trees import Json

SCRIPTS = ("tools", "charts", "overview", "run", "actions", "episode", "main")


@cache
def _parts() -> tuple[str, str]:
    """Style and script."""
    folder = files("rlpd_gx.report.inspector").joinpath("page")
    style = folder.joinpath("style.css").read_text(encoding="utf-8")
    script = "\n".join(folder.joinpath(f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)
    return style, f'"use strict";\n{script}'


@cache
def csp() -> str:
    """What the page may do: run this one script, and talk to the server it came from."""
    style, script = (
        "'sha256-" + base64.b64encode(hashlib.sha256(p.encode()).digest()).decode() + "'" for p in _parts()
    )
    return (
        f"default-src 'none'; script-src {script}; style-src {style}; img-src 'self' blob: data:; "
        "media-src blob:; connect-src 'self'; base-uri 'none'; form-action 'none'"
    )


def document(data: Json) -> bytes:
    """The page with what it starts from: where to ask, or everything it will ever show."""
    style, script = _parts()
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    # inside a script element only these could end it
    text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{csp()}">
<title>rlpd-gx inspector</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<div id="app"></div>
<noscript>This page needs JavaScript; it loads nothing from elsewhere.</noscript>
<script type="application/json" id="data">{text}</script>
<script type="module">{script}</script>
</body>
</html>
""".encode()
