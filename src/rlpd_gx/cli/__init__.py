"""The `rlpd-gx` command. The module of a command is imported when it is called, so that help is quick."""

import os
import sys
import warnings
from itertools import takewhile

from rlpd_gx.errors import GxError

COMMANDS = {  # words -> (module:function, one line)
    "train": ("train:train", "Train a policy under a guard."),
    "evaluate": ("train:evaluate", "Play the policy of a run under its guard."),
    "watch": ("watch:watch", "Watch runs live in the browser."),
    "sweep": ("sweep:sweep", "Train every combination of some settings."),
    "reproduce": ("reproduce:reproduce", "Run the experiments of the paper."),
    "report": ("reproduce:report", "Write a page from experiments or a run."),
    "compare": ("compare:compare", "Show runs side by side, on one page."),
    "measure": ("measure:measure", "Measure the policy of a run."),
    "guard": ("guard:guard", "Try rules on an environment."),
    "collect": ("collect:collect", "Record a dataset."),
    "data convert": ("data:convert", "Convert a dataset of any format."),
    "data audit": ("data:audit", "Show what is in a dataset."),
    "data list": ("data:list_", "List the datasets in the cache."),
    "export": ("export:export", "Write policy and guard of a run."),
    "play": ("export:play", "Film a policy under its guard."),
    "theory solve": ("theory:solve", "Solve a tabular guarded MDP."),
    "theory verify": ("theory:verify", "Check the contraction on MDPs."),
    "atari list": ("atari:list_games", "List the 26 games."),
    "atari verify": ("atari_verify:verify", "Measure what look-ahead or RAM rules prevent."),
    "atari show": ("atari:show", "Draw what a game's table sees and forbids."),
    "atari boxes": ("atari:boxes", "Check a table's boxes against the screen."),
    "atari find-flags": ("atari:find_flags", "Find RAM bytes that show a death."),
}


def main() -> None:
    """Run the command; a user's mistake is one sentence on standard error and exit code 2."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch loads, or a busy neighbour costs 10x
    usual, warnings.formatwarning = warnings.formatwarning, _note
    try:
        _run(sys.argv[1:])
    except GxError as error:
        print(f"rlpd-gx: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `rlpd-gx ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        from rlpd_gx.cli.failures import told

        print(told(error), file=sys.stderr)
        sys.exit(1)
    finally:
        warnings.formatwarning = usual
    sys.exit(0)


def _note(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning as it is printed: ours without the line of code that gave it."""
    ours = issubclass(category, UserWarning)
    return f"note: {message}\n" if ours else f"{category.__name__}: {message} ({filename}:{lineno})\n"


def _run(words: list[str]) -> None:
    if words[:1] == ["--version"]:
        from rlpd_gx import __version__

        print(f"rlpd-gx {__version__}")
        return
    for count in (1, 2):
        name = " ".join(words[:count])
        if name in COMMANDS:
            from importlib import import_module

            from rlpd_gx.cli.arguments import Parser

            module, _, function = COMMANDS[name][0].partition(":")
            Parser(getattr(import_module(f"rlpd_gx.cli.{module}"), function), name).run(words[count:])
            return
    code = 2
    if words and words[-1] in ("--help", "-h"):
        words, code = words[:-1], 0
    typed = " ".join(takewhile(lambda word: not word.startswith("-"), words)) or " ".join(words)
    group = [name for name in COMMANDS if not words or name.startswith(f"{typed} ")]
    if not group:
        from rlpd_gx.loading import did_you_mean

        instead = did_you_mean(typed, COMMANDS) or "; `rlpd-gx --help` lists them"
        raise GxError(f"there is no command {typed!r}{instead}")
    group_name = f"{typed} " if words else ""
    print(
        f"usage: rlpd-gx {group_name}COMMAND [options]\n\nSafe hybrid offline-to-online reinforcement learning.\n"
    )
    for name in group:
        print(f"  {name:<18}{COMMANDS[name][1]}")
    print(
        f"\n`rlpd-gx {group_name}COMMAND --help` shows the options of a command.\n"
        "`rlpd-gx --version` prints the version."
    )
    sys.exit(code)
