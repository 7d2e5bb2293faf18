"""`rlpd-gx watch`."""

from pathlib import Path
from typing import Annotated

from rlpd_gx.cli.arguments import Argument, Option

PORT = 8642


def watch(
    folder: Annotated[Path, Argument("Folder of a run, or a folder that holds runs.")] = Path("runs"),
    port: Annotated[int, Option("Port of the page; 0 takes any that is free.", min=0, max=65535)] = PORT,
    host: Annotated[
        str, Option("Address to bind to. Any other than this machine's own needs a token.")
    ] = "127.0.0.1",
) -> None:
    """Watch runs in the browser: live curves, every correction, episodes step by step, runs side by side.

    The page is served to this machine only and nothing is written. Opening an episode imports the rules and the
    environment that the run was made with: do it only with runs that you trust.
    """
    from rlpd_gx.report.inspector.server import Inspector

    with Inspector(folder, host, port) as server:
        print(f"Inspector: {server.url} (Ctrl-C ends it)", flush=True)
        server.serve_forever()
