"""The same page as a file: everything that it shows is inside, and nothing is loaded from elsewhere."""

import os
from collections.abc import Sequence
from pathlib import Path

from rlpd_gx.errors import GxError
from rlpd_gx.files import write_bytes
from rlpd_gx.report.inspector.document import document
from rlpd_gx.report.inspector.folder import FILES, Folder
from rlpd_gx.report.inspector.run import OVERLAYS, WatchedRun
from rlpd_gx.trees import Json

MOST_EPISODES, MOST_CORRECTIONS = 40, 300  # of each run, whose recorded corrections a file holds


def write_page(runs: Sequence[Path], target: Path) -> Path:
    """Write the page of some runs; of several, they are shown side by side first."""
    if missing := [path for path in runs if not any((path / name).is_file() for name in FILES)]:
        raise GxError(
            f"{missing[0]} holds no run (none of {', '.join(FILES)} is there); give the folder of one"
        )
    paths = [path.resolve() for path in runs]
    root = paths[0] if len(paths) == 1 else Path(os.path.commonpath(paths))
    folder = Folder(root, only=paths)
    folder.refresh()
    write_bytes(target, document(content(folder)))
    return target


def content(folder: Folder) -> Json:
    """Everything that the page asks a server for, except replays."""
    several = len(folder.runs) > 1
    return {
        "live": False,
        "try": "",
        "start": "#/?select=" + "|".join(folder.runs) if several else "",
        "overview": folder.overview(),
        "overlays": {name: folder.overlay(name) for name in OVERLAYS},
        "runs": {name: folder.detail(name) for name in folder.runs},
        "recorded": {name: _recorded(run) for name, run in folder.runs.items()},
    }


def _recorded(run: WatchedRun) -> Json:
    """The corrections of the last episodes that have some, by the episode's key."""
    found: Json = {}
    total = 0
    columns = [run.episodes[name] for name in ("env", "length", "stopped", "corrections")]
    episodes = list(zip(run.firsts(), run.first_proposals(), *columns, strict=True))
    for first, first_proposal, env, length, stopped, corrections in reversed(episodes):
        if len(found) >= MOST_EPISODES or total >= MOST_CORRECTIONS:
            break
        if corrections and 0 <= env < len(run.audits):
            count, most = int(length + stopped), MOST_CORRECTIONS - total
            events = run.audits[int(env)].recorded(first_proposal, count, most)
            total += len(events)
            found[f"{int(env)}-{first}-{int(length)}"] = events
    return found
