"""Look-ahead: an action is allowed if some way of going on after it is seen to stay safe for long enough.

A model of the world (`Model`) is advanced from where the world stands; the world itself is never touched. What was
found to be safe is kept as a plan, so that the next step only has to see one step further.
"""

import random
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from rlpd_gx.errors import GxError
from rlpd_gx.rules.fingerprint import fingerprint
from rlpd_gx.rules.rule import Atom


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where a model can be. Equal `identity` means: the same actions lead to the same future."""

    identity: bytes
    unsafe: bool  # the unsafe event has just happened, or can no longer be avoided
    token: Any = None  # for the model itself: what it takes to go on from here


class Model(Protocol):
    """A simulator of the world, apart from it."""

    def here(self, state: Any) -> Place:
        """Where the world stands. `state` is what the Guardian passes on: as a rule the environment."""
        ...

    def advance(self, place: Place, action: int) -> Place:
        """One step further."""
        ...

    def outcomes(self, place: Place, action: int) -> Sequence[Place]:
        """All that the next step of the world may lead to, the undisturbed one first; the worst of them counts."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions that are known to stay safe, and where each leads."""

    actions: list[int] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.actions)

    def joined(self, other: "Plan") -> "Plan":
        """This plan, then another one."""
        return Plan(self.actions + other.actions, self.places + other.places)

    def cut(self, start: int, end: int | None = None) -> "Plan":
        """The steps from `start` to `end`."""
        return Plan(self.actions[start:end], self.places[start:end])


NOTHING = Plan()


@dataclass(slots=True)
class Situation:
    """What has been found out about one state of one environment."""

    root: Place
    inherited: Plan  # what remains of the plan that certified the last action
    plans: dict[bytes, Plan] = field(default_factory=dict)  # by the place an action leads to
    times: dict[int, int] = field(default_factory=dict)  # by action: steps that are known to stay safe
    known: dict[bytes, tuple[Plan, int]] = field(default_factory=dict)  # places on plans of full length
    spent: int = 0  # simulated steps

    def add(self, plan: Plan) -> None:
        """Let what follows end as soon as it meets this plan."""
        for i, place in enumerate(plan.places):
            self.known[place.identity] = (plan, i + 1)


class Search:
    """The margin function of a look-ahead rule: (steps known to stay safe) / depth - 1, at most 0."""

    def __init__(
        self, model: Model, depth: int, held: Sequence[int], attempts: int, effort: int, lag: int
    ) -> None:
        self.model, self.depth, self.held = model, depth, tuple(held)
        self.attempts, self.effort, self.lag = attempts, effort, lag
        self.simulated_steps = 0
        self._lanes: WeakKeyDictionary[Any, Situation] = WeakKeyDictionary()
        self._saved: list[dict[bytes, list[int]]] = []

    @property
    def fingerprint(self) -> str:
        """Of the settings and the model, not of what was found."""
        settings = (self.depth, self.held, self.attempts, self.effort, self.lag)
        return fingerprint(type(self), self.model, settings)

    def __call__(self, state: Any, action: Any) -> float:
        situation = self._situation(state)
        chosen = int(action)
        if chosen not in situation.times:
            situation.times[chosen] = self._time(situation, chosen)
        return situation.times[chosen] / self.depth - 1.0

    def _situation(self, state: Any) -> Situation:
        """What is known of where the environment stands; plans of the step before are taken over."""
        root = self.model.here(state)
        last = self._lanes.get(state)
        if last is not None and last.root.identity == root.identity:
            return last
        inherited = self._recalled(root) if last is None else last.plans.get(root.identity, NOTHING)
        situation = self._lanes[state] = Situation(root, inherited)
        if len(inherited) == self.depth - 1:
            self._extend(situation)
        return situation

    def _recalled(self, root: Place) -> Plan:
        """The plan from a place that was saved in another run, simulated anew but not counted again."""
        for lane in self._saved:
            if root.identity in lane:
                self._saved.remove(lane)
                actions, counted = lane[root.identity], self.simulated_steps
                plan = self._roll(Situation(root, NOTHING), root, actions, len(actions))
                self.simulated_steps = counted
                return plan
        return NOTHING

    def _extend(self, situation: Situation) -> None:
        """Bring the inherited plan to full length by one more step."""
        plan = situation.inherited
        for action in dict.fromkeys((plan.actions[-1], *self.held)):
            place = self._advance(situation, plan.places[-1], action)
            if not place.unsafe:
                situation.inherited = plan.joined(Plan([action], [place]))
                situation.add(situation.inherited)
                return

    def _time(self, situation: Situation, action: int) -> int:
        """How long the world is known to stay safe after an action, in steps up to `depth`."""
        if situation.root.unsafe:
            return 0
        outcomes = self.model.outcomes(situation.root, action)
        self._count(situation, len(outcomes))
        time = self.depth
        for place in outcomes:
            if place.unsafe:
                return 0
            if place.identity not in situation.plans:  # else another action leads to the same place
                situation.plans[place.identity] = self._search(situation, place, action)
            time = min(time, 1 + len(situation.plans[place.identity]))
        return time

    def _search(self, situation: Situation, place: Place, action: int) -> Plan:
        """The longest plan found from a place; one of depth - 1 steps is enough."""
        best = NOTHING
        for plan in self._attempts(situation, place, action):
            if len(plan) > len(best):
                best = plan
            if len(best) >= self.depth - 1:
                situation.add(best)
                break
        return best

    def _attempts(self, situation: Situation, place: Place, action: int) -> Iterator[Plan]:
        """Plans from the place an action leads to, the most promising ones first."""
        inherited = situation.inherited
        if inherited and inherited.places[0].identity == place.identity:
            yield inherited.cut(1)
            yield from self._repairs(situation)
            return
        ways: list[list[int]] = [[held] for held in dict.fromkeys((action, *self.held))]
        if inherited:
            ways = [inherited.actions[1:], *ways][: 1 if len(inherited) < self.lag else self.attempts]
        for way in ways:
            yield self._roll(situation, place, way, self.depth - 1)

    def _repairs(self, situation: Situation) -> Iterator[Plan]:
        """Other ends for an inherited plan that leads into danger: leave it, ever earlier, for a random one."""
        inherited, need = situation.inherited, self.depth - 1
        chance = random.Random(zlib.crc32(situation.root.identity))
        limit = situation.spent + self.effort * self.depth
        back = self.lag + 1
        while situation.spent < limit and len(inherited) > self.lag:
            leave = max(len(inherited) - back, 1)
            kept = inherited.cut(1, leave)
            segments = [(chance.choice(self.held), chance.randint(1, 8)) for _ in range(8)]
            way = chain.from_iterable(repeat(held, times) for held, times in segments)
            yield kept.joined(self._roll(situation, inherited.places[leave - 1], way, need - len(kept)))
            back = self.lag + 1 if leave == 1 else back + 1 + chance.randrange(back)

    def _roll(self, situation: Situation, place: Place, way: Iterable[int], need: int) -> Plan:
        """Take the actions of `way`, then hold the last of them, for `need` steps or to the unsafe event."""
        actions: list[int] = []
        places: list[Place] = []
        for action in _held_on(way, need):
            met = situation.known.get(place.identity)
            if met is not None:
                return Plan(actions, places).joined(met[0].cut(met[1])).cut(0, need)
            place = self._advance(situation, place, action)
            if place.unsafe:
                break
            actions.append(action)
            places.append(place)
        return Plan(actions, places)

    def _advance(self, situation: Situation, place: Place, action: int) -> Place:
        self._count(situation, 1)
        return self.model.advance(place, action)

    def _count(self, situation: Situation, steps: int) -> None:
        situation.spent += steps
        self.simulated_steps += steps

    def memory(self) -> dict[str, Any]:
        """What verdicts to come depend on, ready for JSON."""
        lanes = [dict(lane) for lane in self._saved]
        for situation in self._lanes.values():
            plans = {situation.root.identity: situation.inherited, **situation.plans}
            lanes.append({identity: plan.actions[: self.depth - 1] for identity, plan in plans.items()})
        plain = [{identity.hex(): actions for identity, actions in lane.items()} for lane in lanes]
        return {"simulated_steps": self.simulated_steps, "lanes": plain}

    def restore_memory(self, memory: dict[str, Any]) -> None:
        """Go on as the look-ahead that gave this memory would have."""
        self._lanes.clear()
        self.simulated_steps = int(memory["simulated_steps"])
        self._saved = [{bytes.fromhex(k): list(v) for k, v in lane.items()} for lane in memory["lanes"]]


def _held_on(way: Iterable[int], steps: int) -> Iterator[int]:
    """The actions of a way, the last of them held on, `steps` in all."""
    last = 0
    for last in islice(way, steps):
        steps -= 1
        yield last
    yield from repeat(last, steps)


class Lookahead(Atom):
    """A lazy margin rule that tries an action and some ways of going on, in a model of the world.

    The margin is (steps known to stay safe) / `depth` - 1: an action is allowed if some way of going on is seen to
    stay safe for `depth` steps. Verdicts depend on the plans found before: save `memory()` with a checkpoint.

    Args:
        model: what to try actions in.
        depth: how many steps to look ahead.
        held: actions that are tried for going on, each held; all of them must be known to the model.
        attempts: how many ways of going on to try for an action that leaves the last plan.
        effort: how much to search, in multiples of `depth`, when the last plan leads into danger.
        lag: steps from the moment at which the event is certain until the model says so.
    """

    def __init__(
        self,
        model: Model,
        *,
        depth: int,
        held: Sequence[int],
        attempts: int = 3,
        effort: int = 10,
        lag: int = 0,
        name: str = "look-ahead",
    ) -> None:
        if depth < 2 or attempts < 1 or effort < 0 or lag < 0 or not len(held):
            raise GxError(
                f"depth {depth}, attempts {attempts}, effort {effort}, lag {lag}, {len(held)} held actions: look "
                "at least 2 steps ahead, with at least one attempt and one held action, and nothing below zero"
            )
        search = Search(model, depth, [int(a) for a in held], attempts, effort, lag)
        super().__init__(search, "margin", name, lazy=True)

    @property
    def search(self) -> Search:
        """What finds the margins."""
        assert isinstance(self.fn, Search)
        return self.fn

    @property
    def simulated_steps(self) -> int:
        """Steps of the model so far; report them beside those of the world."""
        return self.search.simulated_steps

    def memory(self) -> dict[str, Any]:
        """The plans that verdicts to come depend on, and the count of simulated steps, ready for JSON."""
        return self.search.memory()

    def restore_memory(self, memory: dict[str, Any]) -> None:
        """Go on as the look-ahead that gave this memory would have."""
        self.search.restore_memory(memory)

    def shifted(self, delta: float) -> Atom:  # type: ignore[override]
        """The same search with another threshold, such as -0.5: half the depth is enough."""
        return Atom(self.fn, self.form, self.name, shift=self.shift + delta, lazy=True)
