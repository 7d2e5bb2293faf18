"""Unsafe events read from an emulator that another module steps, as in a replay of an action log."""

from typing import Any

from rlpd_gx.envs.atari.games import GAMES, Game, Moment, find_game
from rlpd_gx.trees import Json


class UnsafeEvents:
    """What `AtariEnv` reports as `info["unsafe_event"]`: `begin` after a reset, then a call after every step."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self._before: Moment | None = None

    @property
    def meaning(self) -> Json:
        """What counts as unsafe, as plain values."""
        game = self.game
        return {"event": game.event, "end_counts": game.end_counts, "knocked": list(game.knocked)}

    def begin(self, ale: Any) -> None:
        """Read the state that the first step starts from."""
        self._before = _moment(ale)

    def __call__(self, ale: Any, worst_reward: float) -> bool:
        """Whether the event happened in the step just taken, `worst_reward` being the lowest of its frames."""
        assert self._before is not None, "begin() comes first"
        before, self._before = self._before, _moment(ale)
        return self.game.unsafe(before, self._before, worst_reward)


def events_of(game: str) -> UnsafeEvents | None:
    """The events of a game, by its name or the file of its table; None for a name without a table."""
    known = {name.lower() for name in GAMES}
    if not game.endswith(".toml") and game.replace("_", "").lower() not in known:
        return None
    return UnsafeEvents(find_game(game))


def _moment(ale: Any) -> Moment:
    # A limit on frames ends an episode too, but nobody has lost a life by it.
    return Moment(ale.getRAM(), ale.lives(), ale.game_over(with_truncation=False))
