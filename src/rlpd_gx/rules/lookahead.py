"""Look-ahead: an action is allowed if some continuation after it stays safe for long enough.

A model of the world (`Model`) is advanced from the current state; the world itself is never touched. A continuation
that was found to be safe is kept as a plan, so that the next step only has to extend it by one step.
"""

import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from rlpd_gx.errors import GxError
from rlpd_gx.rules.fingerprint import code_of, fingerprint
from rlpd_gx.rules.forms import SearchedMargin
from rlpd_gx.rules.rule import Atom
from rlpd_gx.trees import Json
from rlpd_gx.types import Action, State

CODE = code_of(__file__)  # part of every fingerprint: the search decides what is found


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A state of the model. Equal `identity` means that the same actions lead to the same future."""

    identity: bytes
    unsafe: bool  # the unsafe event has just happened, or can no longer be avoided
    token: Any = None  # for the model itself: everything needed to continue from here
    settled: bool = False  # nothing unsafe can come from here soon, so there is no need to look further


class Model(Protocol):
    """A simulator of the world, separate from it."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever what is safe may have changed."""
        ...

    def here(self, state: State) -> Place:
        """The current state of the world. `state` is what the Guardian passes to rules: usually the environment."""
        ...

    def advance(self, place: Place, action: int) -> Place:
        """One step further."""
        ...

    def outcomes(self, place: Place, action: int, previous_action: int | None) -> Sequence[Place]:
        """All possible outcomes of the next step of the world; the worst of them counts.

        `previous_action` is None unless the rule declares that it needs it.
        """
        ...

    # A model may also have:
    # def harmless(self, state: State, action: int) -> bool:
    #     Whether an action needs no search.
    # def suggest(self, place: Place, held: int) -> int:
    #     The held action, or one that is safer at first sight: tried early as a way to continue.


class Twin:
    """A model from a second instance of an environment that has `clone()` and `restore_clone(clone)`.

    Args:
        env: the second instance; only this one is ever stepped.
        unsafe_event: (observation, reward, terminated, truncated, info) -> whether it has just happened.
        identity: clone -> bytes that are equal only for clones with the same future.
    """

    def __init__(self, env: Any, unsafe_event: Callable[..., bool], identity: Callable[[Any], bytes]) -> None:
        self.env, self.unsafe_event, self.identity = env, unsafe_event, identity

    @property
    def fingerprint(self) -> str:
        """Of the event and identity functions; the environment is the world itself, not part of the rule."""
        return fingerprint(self.unsafe_event, self.identity)

    def here(self, state: State) -> Place:
        """The current state of an environment."""
        clone = state.clone()
        return Place(self.identity(clone), False, (clone, False))

    def advance(self, place: Place, action: int) -> Place:
        """One step of the second instance; after the end of an episode nothing changes."""
        clone, over = place.token
        if over:
            return place
        self.env.restore_clone(clone)
        observation, reward, terminated, truncated, info = self.env.step(action)
        unsafe = bool(self.unsafe_event(observation, reward, terminated, truncated, info))
        clone = self.env.clone()
        return Place(self.identity(clone), unsafe, (clone, bool(terminated)))

    def outcomes(self, place: Place, action: int, previous_action: int | None) -> Sequence[Place]:
        """The same step: the model is deterministic."""
        return [self.advance(place, action)]


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions that are known to stay safe, and the place each leads to."""

    actions: list[int] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.actions)

    def joined(self, other: "Plan") -> "Plan":
        """This plan, then another one."""
        return Plan(self.actions + other.actions, self.places + other.places)

    @property
    def settled(self) -> bool:
        """Whether it ends where there is no need to look further."""
        return bool(self.places) and self.places[-1].settled

    def cut(self, start: int, end: int | None = None) -> "Plan":
        """The steps from `start` to `end`."""
        return Plan(self.actions[start:end], self.places[start:end])


NOTHING = Plan()
Way = Callable[[Place], int]  # the next action to try


@dataclass(slots=True)
class Situation:
    """What the search has found in one state of one environment."""

    root: Place
    inherited: Plan  # what remains of the plan that certified the last action
    plans: dict[bytes, Plan] = field(default_factory=dict)  # by the place an action leads to
    times: dict[int, int] = field(default_factory=dict)  # by action: steps that are known to stay safe
    known: dict[bytes, tuple[Plan, int]] = field(default_factory=dict)  # places on plans of full length
    asked: list[tuple[int, int | None]] = field(default_factory=list)  # (action, previous one), in order
    spent: int = 0  # simulated steps
    repaired: bool = False  # a search without an inherited plan was made

    def add(self, plan: Plan) -> None:
        """Let later searches end as soon as they meet this plan."""
        for i, place in enumerate(plan.places):
            self.known[place.identity] = (plan, i + 1)


class Search:
    """The margin function of a look-ahead rule: (steps known to stay safe) / depth - 1, at most 0."""

    def __init__(self, model: Model, depth: int, held: Sequence[int], attempts: int, effort: int) -> None:
        self.model, self.depth, self.held = model, depth, tuple(held)
        self.attempts, self.effort = attempts, effort
        self.simulated_steps = 0
        self.harmless: Callable[[State, int], bool] | None = getattr(model, "harmless", None)
        self.suggest: Callable[..., int] | None = getattr(model, "suggest", None)
        self._environments: WeakKeyDictionary[Any, Situation] = WeakKeyDictionary()
        self._saved: list[Json] = []

    @property
    def fingerprint(self) -> str:
        """Of the settings and the model, not of the plans found."""
        settings = (self.depth, self.held, self.attempts, self.effort)
        return fingerprint(CODE, self.model.fingerprint, settings)

    def __call__(self, state: State, action: Action, previous_action: Action = None) -> float:
        if self.harmless is not None and self.harmless(state, int(action)):
            return 0.0
        root = self.model.here(state)
        situation = self._environments.get(state)
        if situation is None:
            situation = self._recalled(root)
        elif situation.root.identity != root.identity:
            situation = self._arrived(root, situation.plans.get(root.identity, NOTHING))
        self._environments[state] = situation
        previous = None if previous_action is None else int(previous_action)
        return self._ask(situation, int(action), previous) / self.depth - 1.0

    def _ask(self, situation: Situation, action: int, previous_action: int | None) -> int:
        if action not in situation.times:
            situation.asked.append((action, previous_action))
            situation.times[action] = self._time(situation, action, previous_action)
        return situation.times[action]

    def _arrived(self, root: Place, inherited: Plan) -> Situation:
        """A new state, and what remains of the plan that led there."""
        situation = Situation(root, inherited)
        if len(inherited) == self.depth - 1 and not inherited.settled:
            self._extend(situation)
        return situation

    def _recalled(self, root: Place) -> Situation:
        """The situation saved by another process: searched again, but not counted again."""
        key, counted = root.identity.hex(), self.simulated_steps
        for environment in self._saved:
            if key != environment["root"] and key not in environment["plans"]:
                continue
            self._saved.remove(environment)
            actions = environment["inherited"] if key == environment["root"] else environment["plans"][key]
            inherited = self._roll(Situation(root, NOTHING), root, _held_on(actions), len(actions))
            self.simulated_steps = counted
            situation = self._arrived(root, inherited)
            if key == environment["root"]:
                for action, previous_action in environment["asked"]:
                    self._ask(situation, action, previous_action)
                self.simulated_steps = counted
            return situation
        return Situation(root, NOTHING)

    def _extend(self, situation: Situation) -> None:
        """Extend the inherited plan to full length by one more step."""
        plan = situation.inherited
        for action in dict.fromkeys((plan.actions[-1], *self.held)):
            place = self._advance(situation, plan.places[-1], action)
            if not place.unsafe:
                situation.inherited = plan.joined(Plan([action], [place]))
                situation.add(situation.inherited)
                return

    def _time(self, situation: Situation, action: int, previous_action: int | None) -> int:
        """How long the world is known to stay safe after an action, in steps up to `depth`."""
        if situation.root.unsafe:
            return 0
        outcomes = self.model.outcomes(situation.root, action, previous_action)
        self._count(situation, len(outcomes))
        time = self.depth
        for place in outcomes:
            if place.unsafe:
                return 0
            if place.settled:
                continue
            if place.identity not in situation.plans:  # else another action leads to the same place
                situation.plans[place.identity] = self._search(situation, place, action)
            plan = situation.plans[place.identity]
            time = time if plan.settled else min(time, 1 + len(plan))
        return time

    def _search(self, situation: Situation, place: Place, action: int) -> Plan:
        """The longest plan found from a place; one of depth - 1 steps, or that ends settled, is enough."""
        best = NOTHING
        for plan in self._attempts(situation, place, action):
            if len(plan) > len(best):
                best = plan
            if len(plan) >= self.depth - 1 or plan.settled:
                best = plan
                situation.add(best)
                break
        return best

    def _attempts(self, situation: Situation, place: Place, action: int) -> Iterator[Plan]:
        """Plans from the place an action leads to, most promising first."""
        inherited = situation.inherited
        if inherited and inherited.places[0].identity == place.identity:
            yield inherited.cut(1)
            yield from self._repairs(situation, inherited)
            return
        ways = [_held_on([held]) for held in dict.fromkeys((action, *self.held))]
        if self.suggest is not None:
            ways[0] = partial(self.suggest, held=action)
        if inherited:
            ways = [_held_on(inherited.actions[1:]), *ways][: self.attempts]
        longest = NOTHING
        for way in ways:
            plan = self._roll(situation, place, way, self.depth - 1)
            longest = max(longest, plan, key=len)
            yield plan
        # A model that calls states harmless leaves gaps between plans: there may be none to fall back on.
        if not inherited and self.harmless is not None and not situation.repaired:
            situation.repaired = True
            yield from self._repairs(situation, Plan([action], [place]).joined(longest))

    def _repairs(self, situation: Situation, inherited: Plan) -> Iterator[Plan]:
        """Other endings for a plan that becomes unsafe: leave it, earlier each time, for random actions."""
        need = self.depth - 1
        chance = random.Random(zlib.crc32(situation.root.identity))
        limit = situation.spent + self.effort * self.depth
        back = 1
        for _ in range(self.effort * self.depth):
            if situation.spent >= limit:
                return
            leave = max(len(inherited) - back, 1)
            kept = inherited.cut(1, leave)
            segments = [(chance.choice(self.held), chance.randint(1, 8)) for _ in range(8)]
            way = chain.from_iterable(repeat(held, times) for held, times in segments)
            rolled = self._roll(situation, inherited.places[leave - 1], _held_on(way), need - len(kept))
            yield kept.joined(rolled)
            back = 1 if leave == 1 else back + 1 + chance.randrange(back)

    def _roll(self, situation: Situation, place: Place, way: Way, need: int) -> Plan:
        """Take the actions of `way` for `need` steps, or until the unsafe event or a settled place."""
        plan = Plan()
        while len(plan) < need and not place.settled:
            met, at = situation.known.get(place.identity, (NOTHING, 0))
            if at < len(met):  # from here on a safe plan is known
                plan = plan.joined(met.cut(at))
                place = plan.places[-1]
                continue
            action = way(place)
            place = self._advance(situation, place, action)
            if place.unsafe:
                break
            plan.actions.append(action)
            plan.places.append(place)
        return plan.cut(0, need)

    def _advance(self, situation: Situation, place: Place, action: int) -> Place:
        self._count(situation, 1)
        return self.model.advance(place, action)

    def _count(self, situation: Situation, steps: int) -> None:
        situation.spent += steps
        self.simulated_steps += steps

    def memory(self) -> Json:
        """What later verdicts depend on, ready for JSON."""
        environments = [
            {
                "root": situation.root.identity.hex(),
                "inherited": situation.inherited.actions[: self.depth - 1],
                "asked": [list(pair) for pair in situation.asked],
                "plans": {identity.hex(): plan.actions for identity, plan in situation.plans.items()},
            }
            for situation in self._environments.values()
        ]
        return {"simulated_steps": self.simulated_steps, "environments": self._saved + environments}

    def restore_memory(self, memory: Json) -> None:
        """Restore a memory: verdicts are then those of the look-ahead that returned it."""
        self._environments.clear()
        self.simulated_steps = int(memory["simulated_steps"])
        self._saved = list(memory["environments"])


def _held_on(actions: Iterable[int]) -> Way:
    """The given actions, then the last one repeated without end."""
    given = list(actions)
    remaining = chain(given, repeat(given[-1] if given else 0))
    return lambda place: next(remaining)


class Lookahead(Atom):
    """A lazy margin rule that tries an action and some continuations in a model of the world.

    The margin is (steps known to stay safe) / `depth` - 1: an action is allowed if some continuation stays safe for
    `depth` steps. Verdicts depend on the plans found before: save `memory()` with a checkpoint.

    Args:
        model: what to try actions in.
        depth: how many steps to look ahead.
        held: actions to continue with, each repeated; the model must accept all of them.
        attempts: how many continuations to try for an action that leaves the last plan.
        effort: how much to search, in multiples of `depth`, when the last plan becomes unsafe.
        needs: ("previous_action",) if the outcomes of a step depend on the action before.
    """

    def __init__(
        self,
        model: Model,
        *,
        depth: int,
        held: Sequence[int],
        attempts: int = 3,
        effort: int = 10,
        needs: Sequence[str] = (),
        name: str = "look-ahead",
    ) -> None:
        if depth < 2 or attempts < 1 or effort < 0 or not len(held):
            raise GxError(
                f"depth {depth}, attempts {attempts}, effort {effort}, {len(held)} held actions: look at least 2 "
                "steps ahead, with one attempt and one held action or more, and no effort below zero"
            )
        search = Search(model, depth, [int(a) for a in held], attempts, effort)
        super().__init__(search, SearchedMargin(), name, needs=tuple(needs), lazy=True)

    def __deepcopy__(self, memo: dict[int, object]) -> "Lookahead":
        return self  # it keeps separate plans for environments that share it

    @property
    def search(self) -> Search:
        """The search that finds the margins."""
        assert isinstance(self.fn, Search)
        return self.fn

    @property
    def simulated_steps(self) -> int:
        """Steps of the model so far; report them beside the environment steps."""
        return self.search.simulated_steps

    def memory(self) -> Json:
        """The plans that later verdicts depend on, and the number of simulated steps, ready for JSON."""
        return self.search.memory()

    def restore_memory(self, memory: Json) -> None:
        """Restore a memory: verdicts are then those of the look-ahead that returned it."""
        self.search.restore_memory(memory)

    def shifted(self, delta: float) -> Atom:  # type: ignore[override]
        """The same search with another threshold, such as -0.5: half the depth is enough."""
        return Atom(self.fn, self.form, self.name, needs=self.needs, shift=self.shift + delta, lazy=True)
