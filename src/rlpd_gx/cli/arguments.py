"""Commands from function signatures: `episodes: Annotated[int, Option("Help.", min=1)] = 10` is a flag of argparse.

Help is plain text that nothing cuts, and a mistake is one sentence.
"""

import argparse
import inspect
import os
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NoReturn, get_args, get_origin

from rlpd_gx.errors import GxError
from rlpd_gx.loading import did_you_mean

if TYPE_CHECKING:
    from rlpd_gx.settings import Setting

COLUMN = 26  # where help texts begin
VALUES = {int: "N", float: "X", Path: "PATH", str: "TEXT"}
"""What stands for a value in the help."""


class Option(NamedTuple):
    """A flag of a command."""

    help: str
    min: float | None = None
    max: float | None = None
    short: str = ""
    """One letter."""
    many: bool = False
    """Whether several values may follow the flag; for lists."""


class Argument(Option):
    """A value without a flag."""


class Parser(argparse.ArgumentParser):
    """The arguments of one command. A function with `**settings` takes a flag for each setting of a run."""

    def __init__(self, function: Callable[..., None], name: str) -> None:
        self.function = function
        parameters = inspect.signature(function).parameters
        super().__init__(prog=f"rlpd-gx {name}", allow_abbrev=False, add_help=False)
        if "help" not in parameters:
            self.add_argument("-h", "--help", action="help", help="Show this text.")
        for parameter in parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                from rlpd_gx.settings import SETTINGS

                for setting in SETTINGS.values():
                    self._add_setting(setting)
            else:
                self._add(parameter)

    def run(self, arguments: Sequence[str]) -> None:
        """Call the function with what was typed."""
        self._refuse_repeats(arguments)
        values, unknown = self.parse_known_args(arguments)
        if unknown:
            flag = unknown[0].partition("=")[0]
            instead = did_you_mean(flag, self._option_string_actions) or self._see()
            what = "flag" if flag.startswith("-") else "argument"
            raise GxError(f"{self.prog} has no {what} {flag}{instead}")
        self.function(**vars(values))

    def error(self, message: str) -> NoReturn:
        """A mistake in the arguments."""
        raise GxError(message.removeprefix("argument ") + self._see())

    def format_help(self) -> str:
        """Usage, description and one entry for each argument."""
        actions = [action for action in self._actions if action.help]
        needed = [invocation(action) for action in actions if action.required]
        needed += [f"[{invocation(action)}]" for action in actions if action.nargs == "?"]
        usage = " ".join(["usage:", self.prog, *needed, "[options]"])
        head = [paragraphs(usage), "", paragraphs(self.function.__doc__), ""]
        return "\n".join([*head, *map(entry, actions), ""])

    def _refuse_repeats(self, arguments: Sequence[str]) -> None:
        """Raise if a flag that takes one value was typed more often: argparse would keep the last one alone."""
        typed = [word.partition("=")[0] for word in arguments]
        for action in self._actions:
            one = isinstance(action, argparse._StoreAction | argparse.BooleanOptionalAction)
            flags = [word for word in typed if word in action.option_strings]
            if one and len(flags) > 1:
                rules = "; name a list of rules, or combine them with &" if flags[0] == "--rules" else ""
                raise GxError(f"give {' or '.join(dict.fromkeys(flags))} once, not {len(flags)} times{rules}")

    def _see(self) -> str:
        return f"; `{self.prog} --help` shows what it takes"

    def _add(self, parameter: inspect.Parameter) -> None:
        kind, option = get_args(parameter.annotation)
        optional, name, default = NoneType in get_args(kind), parameter.name.rstrip("_"), parameter.default
        if optional:
            (kind,) = (part for part in get_args(kind) if part is not NoneType)
        required = default is parameter.empty
        more: dict[str, Any] = {"help": option.help} | ({} if required else {"default": default})
        if kind is bool:
            more["action"] = argparse.BooleanOptionalAction if optional else "store_true"
        elif get_origin(kind) is Literal:
            more |= {"choices": get_args(kind), "metavar": "WORD"}
        else:
            if get_origin(kind) is list:
                (kind,) = get_args(kind)
                more |= {"nargs": "+"} if isinstance(option, Argument) else {"action": "append"}
            more |= {"type": _reader(kind, option), "metavar": VALUES[kind]}
            more |= {"action": "extend", "nargs": "+"} if option.many else {}
        if isinstance(option, Argument):
            more |= {"metavar": name.upper()} | ({} if required else {"nargs": "?"})
            self.add_argument(parameter.name, **more)
            return
        flags = [f"-{option.short}"] * bool(option.short) + [f"--{name.replace('_', '-')}"]
        self.add_argument(*flags, dest=parameter.name, **more, required=required)

    def _add_setting(self, setting: "Setting") -> None:
        more: dict[str, Any] = {"metavar": setting.metavar}
        if setting.type is bool:
            more = {"action": argparse.BooleanOptionalAction}
        elif setting.type == tuple[str, ...]:
            more["action"] = "append"
        choices = f" One of: {', '.join(setting.choices)}." if setting.choices else ""
        self.add_argument(setting.flag, dest=setting.name, help=setting.help + choices, **more)


def without(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """A command line without these flags, each of which takes one value."""
    kept: list[str] = []
    value_follows = False
    for word in words:
        flag, equals, _ = word.partition("=")
        if not value_follows and flag not in flags:
            kept.append(word)
        value_follows = not value_follows and flag in flags and not equals
    return kept


EnvKwargs = Annotated[
    str, Option("Keyword arguments of the environment as JSON, such as '{\"max_episode_steps\": 200}'.")
]


EnvWrappers = Annotated[
    list[str] | None,
    Option(
        "module:name of a wrapper of the environment; given several times, the first one is the innermost."
    ),
]


def read_env_kwargs(text: str, wrappers: list[str] | None = None) -> dict[str, Any]:
    """The values of --env-kwargs and --env-wrappers, as arguments of `make`."""
    from rlpd_gx.settings import COMMAND_LINE, SETTINGS

    return SETTINGS["env_kwargs"].read(text, COMMAND_LINE) | ({"wrappers": wrappers} if wrappers else {})


def invocation(action: argparse.Action) -> str:
    """What to type."""
    value = "" if action.nargs == 0 else str(action.metavar)
    return " ".join(part for part in (", ".join(action.option_strings), value) if part)


def entry(action: argparse.Action, value: str = "") -> str:
    """An argument in the help: what to type, its sentence, its choices, and the value in force."""
    choices = f" One of: {', '.join(action.choices)}." if action.choices else ""
    if not value and not any(action.default is absent for absent in (None, False, argparse.SUPPRESS)):
        value = shown(action.default)
    text = f"{action.help}{choices}" + (f" [{value}]" if value not in ("", "{}") else "")
    left = f"  {invocation(action)}"
    fits = len(left) < COLUMN - 1
    lines = wrapped(text, indent=" " * COLUMN, first=left.ljust(COLUMN) if fits else " " * COLUMN)
    return lines if fits else f"{left}\n{lines}"


def paragraphs(text: str | None) -> str:
    """Text whose paragraphs are set to the width of the terminal."""
    return "\n\n".join(wrapped(" ".join(part.split())) for part in inspect.cleandoc(text or "").split("\n\n"))


def wrapped(text: str, indent: str = "", first: str = "") -> str:
    """Lines as wide as the terminal, at most 100 columns; words are never broken."""
    try:
        width = int(os.environ.get("COLUMNS", "")) or 80
    except ValueError:
        width = os.get_terminal_size().columns if os.isatty(1) else 80
    return textwrap.fill(
        text, max(min(width, 100), 40), initial_indent=first, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def shown(value: Any) -> str:
    """A value as it is typed."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple | list):
        return ",".join(map(shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _reader(kind: type, option: Option) -> Callable[[str], Any]:
    """Reads a value and checks its range."""

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            number = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"give {number}, not {text!r}") from None
        for limit, sign, words in ((option.min, 1, "at least"), (option.max, -1, "at most")):
            if limit is not None and not sign * value >= sign * limit:
                raise argparse.ArgumentTypeError(f"must be {words} {limit:g}, got {text}")
        return value

    return read
