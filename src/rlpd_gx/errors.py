"""Errors written for the person who reads them: what was wrong, where, what to do."""


class GxError(ValueError):
    """An input from the user cannot be used. The commands print it as one sentence and exit with 2."""


class StopEpisode(RuntimeError):
    """The Guardian found no action that may be executed: the episode must end."""


def missing_extra(package: str, extra: str) -> GxError:
    """The sentence for an optional part that is not installed."""
    return GxError(f"{package} is not installed; add it with: pip install 'rlpd-gx[{extra}]'")


def refuse_text(given: object, name: str) -> None:
    """Raise where text was given for a list, because its letters would be the items."""
    if isinstance(given, str):
        raise GxError(f"{name} takes a list, not the text {given!r}; write {name}=[{given!r}]")


def first_line(error: BaseException) -> str:
    """What an error says, for a sentence of ours; the name of its kind where it says nothing."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
