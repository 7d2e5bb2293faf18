"""Look-ahead in Atari: an emulator of its own tries out what may happen, the game itself is never touched."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from rlpd_gx import rules
from rlpd_gx.envs.atari.env import AtariEnv
from rlpd_gx.envs.atari.games import Game, Moment
from rlpd_gx.envs.atari.ram_rules import NothingNear, images
from rlpd_gx.errors import GxError
from rlpd_gx.rules import Place
from rlpd_gx.types import Array

CODE = rules.code_of(__file__)  # part of the fingerprint
DEPTH_STEPS = 24
FAR_DEPTH_STEPS = 32
RELIABLE_RECALL = 0.95  # of a dying flag
MOST_DEPTH_STEPS = 48  # the lag of Krull and Gopher is longer, but so is what a verdict would cost


class Emulator:
    """A second emulator, without chance, as a model of games played with the same settings as `env`.

    Restored states behave as in the emulator they come from once both have run a frame: in all 26 games the bytes
    of their states stay the same.
    """

    def __init__(self, env: AtariEnv, reach: float = 0) -> None:
        self.nothing_near = NothingNear(env, reach) if reach else None
        self.harmless = self._harmless if reach else None
        self.suggest = self._suggest if reach else None
        self.game, self.frame_skip = env.game, env.frame_skip
        self.sticky = env.settings["sticky"] > 0
        twin = AtariEnv(
            env.game, noop_max=1, full_action_space=env.settings["full_action_space"], max_steps=env.max_steps
        )
        twin.reset(seed=0)
        self.ale, self.actions = twin.ale, twin.actions
        self._at: Place | None = None  # where the emulator stands

    @property
    def fingerprint(self) -> str:
        """Of what makes a step and an event."""
        game, names = self.game, [action.name for action in self.actions]
        event = (game.name, game.event, game.end_counts, repr(game.dying))
        near = self.nothing_near and self.nothing_near.fingerprint
        return rules.fingerprint(CODE, Game.unsafe, event, names, self.frame_skip, self.sticky, near)

    def here(self, state: Any) -> Place:
        """Where a game stands, in our environment or, while a log is replayed, in ale-py's own.

        Never unsafe, since what comes next is worth a look even if a flag shows.
        """
        ale = state.ale
        if isinstance(state, AtariEnv):  # which knows better than the emulator right after a restore
            moment = Moment(state.ram(), state.lives, state.game_over)
        else:
            moment = Moment(ale.getRAM(), ale.lives(), ale.game_over())
        return _place(ale, moment, images(state)[1])

    def advance(self, place: Place, action: int) -> Place:
        """One step: an action for `frame_skip` frames."""
        return self._run(place, [self.actions[action]] * self.frame_skip)

    def outcomes(self, place: Place, action: int, previous_action: int | None) -> Sequence[Place]:
        """One place; with sticky actions one for each number of frames that the action before may last."""
        if not self.sticky or previous_action is None or previous_action == action:
            return [self.advance(place, action)]
        before, now = self.actions[previous_action], self.actions[action]
        late = range(self.frame_skip + 1)
        return [self._run(place, [before] * k + [now] * (self.frame_skip - k)) for k in late]

    def _harmless(self, state: Any, action: int) -> bool:
        """Whether RAM rules allow an action, and nothing else comes into play soon."""
        assert self.nothing_near is not None
        return self.nothing_near.allows(*images(state), action)

    def _suggest(self, place: Place, held: int) -> int:
        """The held action unless another one has a larger margin under the RAM rules."""
        assert self.nothing_near is not None
        margins = self.nothing_near.margins(place.token.moment.ram, place.token.was)
        best = int(margins.argmax())
        return best if margins[best] > margins[held] else held

    def _run(self, place: Place, frames: list[Any]) -> Place:
        ale, game = self.ale, self.game
        state, before = place.token.state, place.token.moment
        if place is not self._at:
            if state.getEpisodeFrameNumber() == 0:  # a state before the first frame needs such an emulator
                ale.reset_game()
            ale.restoreState(state)
        rewards = [ale.act(action) for action in frames]
        after = Moment(ale.getRAM(), ale.lives(), ale.game_over())
        unsafe = game.is_dying(after.ram) or game.unsafe(before, after, min(rewards))
        settled = not unsafe and self.nothing_near is not None and self.nothing_near(after.ram, before.ram)
        self._at = _place(ale, after, before.ram, unsafe, sum(rewards), settled)
        return self._at


class Token(NamedTuple):
    """What the emulator needs to continue from a place, and the reward of the step that led there."""

    state: Any
    moment: Moment
    reward: float
    was: Array  # RAM a step before


def _place(
    ale: Any, moment: Moment, was: Array, unsafe: bool = False, reward: float = 0.0, settled: bool = False
) -> Place:
    state = ale.cloneState()
    identity = blake2b(state.serialize(), digest_size=16).digest()
    return Place(identity, unsafe, Token(state, moment, reward, was), settled)


def default_depth(game: Game) -> int:
    """How far to look ahead: further where the flag misses some deaths, and where the table says so."""
    near = not game.dying or game.evidence.recall >= RELIABLE_RECALL
    return min(max(DEPTH_STEPS if near else FAR_DEPTH_STEPS, game.depth, game.horizon), MOST_DEPTH_STEPS)


class Lookahead(rules.Lookahead):
    """The look-ahead rule for games played with the settings of `env`; use it with `state=emulator_state`.

    Args:
        env: an environment of the game; only its settings are read.
        depth: steps to look ahead; the game's own if not given.
        continuations: actions that are tried for going on, each held, by number or name (`"UP"`); all if not given.
        attempts, effort: see `gx.Lookahead`.
        reach: simulate no further where RAM rules see nothing within this multiple of their horizon; 0: always.
    """

    def __init__(
        self,
        env: Any,
        depth: int | None = None,
        continuations: Sequence[int | str] | None = None,
        *,
        attempts: int = 3,
        effort: int = 10,
        reach: float = 0,
    ) -> None:
        atari: AtariEnv = env.unwrapped
        if not isinstance(atari, AtariEnv):
            name = str(getattr(getattr(env, "spec", None), "id", ""))
            game = name.removeprefix("ALE/").partition("-")[0] if name.startswith("ALE/") else "GAME"
            raise GxError(
                f"look-ahead needs one of our Atari environments, not {name or env}: --env Atari/{game}-ram"
            )
        names = atari.action_meanings
        given = range(len(names)) if continuations is None else continuations
        for unknown in (a for a in given if isinstance(a, str) and a not in names):
            raise GxError(f"{atari.game.name} has no action {unknown!r}; it has {', '.join(names)}")
        held = [names.index(a) if isinstance(a, str) else int(a) for a in given]
        model = Emulator(atari, reach)
        super().__init__(
            model,
            depth=depth or default_depth(atari.game),
            held=held,
            attempts=attempts,
            effort=effort,
            needs=("previous_action",) if model.sticky else (),
        )


class QuickLookahead(Lookahead):
    """Look-ahead that simulates only where a thing, a ball or a resource of the game's table matters soon.

    The same as `Lookahead` in games whose table has no `reach`: there RAM rules miss too much to end a search with.
    """

    def __init__(self, env: Any, depth: int | None = None) -> None:
        super().__init__(env, depth, reach=getattr(getattr(env.unwrapped, "game", None), "reach", 0))


def emulator_state(env: Any, observation: Any, info: dict[str, Any]) -> Any:
    """What look-ahead reads: the environment itself, or each member of a vector of them."""
    world = env.unwrapped
    members = [e.unwrapped for e in getattr(world, "envs", [world])]
    for member in members:
        if not hasattr(member, "ale"):
            raise GxError(
                f"look-ahead needs Atari environments of this process, not {type(member).__name__}; where each runs "
                "in a process of its own, guard it there"
            )
    return members if hasattr(world, "envs") else world


def unsafe_event(
    observation: Any, reward: Any, terminated: bool, truncated: bool, info: dict[str, Any]
) -> bool:
    """What the game itself says."""
    return bool(info["unsafe_event"])
