"""The environments of a run, each behind its guard, stepped together."""

import math
from collections.abc import Callable, Sequence

import gymnasium as gym
import numpy as np

from rlpd_gx import trees
from rlpd_gx.envs.actions import ActionView
from rlpd_gx.envs.description import learner_space, learner_view
from rlpd_gx.errors import GxError
from rlpd_gx.guardian import Guardian, guarded_layer
from rlpd_gx.rules import Lookahead
from rlpd_gx.safe_sets import Mask, SafeSet
from rlpd_gx.trees import Json, Tree
from rlpd_gx.types import (
    HUMAN_ACTION,
    Action,
    Array,
    Episode,
    Observation,
    Status,
    Transition,
    Verdict,
    executed_action,
)

COMPLETE_SHARE = 0.1  # of states whose complete safe set is asked for, where rules may leave actions untested


class Member:
    """One environment, its current observation, and the running counts of its episode."""

    def __init__(
        self, env: gym.Env, index: int, described: Guardian | None = None, *, watched: bool = False
    ) -> None:
        self.env, self.index, self.described, self.watched = env, index, described, watched
        self.guarded = guarded_layer(env)
        self._spaces = trees.named_leaves(learner_space(env.observation_space), "observation")
        self.observation: Tree = None
        self.restart()

    def restart(self) -> None:
        """Set the counts to zero."""
        self.score, self.length, self.corrections = 0.0, 0, 0
        self.unsafe_events: int | None = 0 if self.watched else None
        self.success_steps: int | None = None
        self.human_steps, self.stopped = 0, False

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode."""
        observation, info = self.env.reset(seed=seed)
        self.observation = self._seen(observation)
        if self.length:  # the game continues after a lost life, with a step that nobody proposed
            self.score += float(info.get("raw_reward", 0.0))
            self._count_unsafe(info)

    def step(self, action: Action) -> tuple[float, bool, bool, Json]:
        """Propose an action; returns reward, terminated, truncated and info."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.observation = self._seen(observation)
        try:
            finite = math.isfinite(reward)
        except TypeError:
            raise self._bad(f"the reward is {reward!r:.80}, not a number") from None
        if not finite:
            raise self._bad(f"the reward is {reward}; nothing can be learned from that")
        if "guardian_stop" in info:
            self.corrections, self.stopped = self.corrections + 1, True
            return 0.0, False, True, info
        verdict = info.get("guardian")
        self.score += float(info.get("raw_reward", reward))
        self.length += 1
        self.corrections += verdict is not None and verdict.corrected
        self._count_unsafe(info)
        success = info.get("success", info.get("is_success"))  # as robotics environments name it
        if success is not None:
            self.success_steps = (self.success_steps or 0) + bool(success)
        self.human_steps += HUMAN_ACTION in info
        return float(reward), bool(terminated), bool(truncated), info

    def _count_unsafe(self, info: Json) -> None:
        if "unsafe_event" in info:
            self.unsafe_events = (self.unsafe_events or 0) + bool(info["unsafe_event"])

    def _seen(self, observation: Tree) -> Tree:
        """The observation as the Learner sees it; what it cannot use is refused here, where its origin is known."""
        view = learner_view(observation)
        parts = trees.named_leaves(view, "observation")
        if parts.keys() != self._spaces.keys():
            here, there = (", ".join(sorted(names)) for names in (parts, self._spaces))
            raise self._bad(f"it returned {here}, and its observation space has {there}")
        for name, part in parts.items():
            values, space = np.asarray(part), self._spaces[name]
            if values.dtype.kind not in "biuf":
                raise self._bad(f"{name} is {part!r:.80}, not numbers")
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                value = "NaN" if np.isnan(values).any() else values[np.isinf(values)][0]
                raise self._bad(f"{name} holds {value}; nothing can be learned from that")
            if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
                count = space.n if isinstance(space, gym.spaces.Discrete) else space.nvec
                if ((values < space.start) | (values >= space.start + count)).any():
                    raise self._bad(f"{name} is {part}, outside its space {space}")
        return view

    def _bad(self, what: str) -> GxError:
        here = f"{type(self.env.unwrapped).__name__}, step {self.length} of an episode:"
        return GxError(f"{here} {what}: mend the environment")

    def finish(self) -> Episode:
        """The episode is over: returns its counts and restarts them."""
        done = Episode(env=self.index, **self.counts())
        self.restart()
        return done

    def counts(self) -> Json:
        """The running counts, for a checkpoint."""
        names = ("score", "length", "corrections", "unsafe_events", "success_steps", "human_steps", "stopped")
        return {name: getattr(self, name) for name in names}

    @property
    def last_executed(self) -> Action | None:
        """The action that ran last under the guard; an arbitrary one before the first step."""
        if self.guarded is None:
            return None
        previous = self.guarded.context().previous_action
        return self.guarded.guardian.blank_actions(1)[0] if previous is None else previous

    @property
    def look_aheads(self) -> list[Lookahead]:
        """The rules whose verdicts depend on earlier ones, and which simulate steps."""
        if self.guarded is None:
            return []
        atoms = [atom for rule in self.guarded.guardian.rules for atom in rule.atoms()]
        return [atom for atom in atoms if isinstance(atom, Lookahead)]

    def safe_set(self) -> SafeSet | None:
        """The safe set in the current state; None without rules, or where they cannot be asked.

        Of the `described` rules alone, if those are given.
        """
        if self.guarded is None:
            return None
        try:
            return self.guarded.safe_set(self.described)
        except GxError:  # the verdict will fall back and report why
            return None


class Environments:
    """N environments stepped together. Learners see [N, ...] arrays; `stack` frames make an observation."""

    def __init__(
        self,
        envs: Sequence[gym.Env],
        encode: Callable[[SafeSet | None], Array],
        stack: int,
        example: SafeSet | None,
        described: Guardian | None = None,
        *,
        watched: bool = False,
    ) -> None:
        self.members = [Member(env, i, described, watched=watched) for i, env in enumerate(envs)]
        self.encode, self.stack, self.example, self.described = encode, stack, example, described
        self.actions = ActionView(envs[0].action_space)
        self.finished: list[Episode] = []
        """Episodes that ended in the last step."""
        self.guarded = [member.guarded for member in self.members if member.guarded is not None]
        """The layers that ask the rules."""
        self.near_miss = self.guarded[0].audit.near_miss if self.guarded else 0.0
        """Margins below this are counted as near misses."""

    def __len__(self) -> int:
        return len(self.members)

    @property
    def observation(self) -> Observation:
        """[N, ...] what the Learner sees now."""
        return trees.stack([member.observation for member in self.members])

    @property
    def frame(self) -> Observation:
        """[N, ...] what the replay stores of it: the newest frame, 64-bit floats as 32-bit ones."""
        newest = self.observation if self.stack == 1 else trees.index(self.observation, np.s_[:, -1])
        return trees.map_leaves(lambda v: v.astype(np.float32) if v.dtype == np.float64 else v, newest)

    def reset(self, where: Array, seeds: Sequence[int] | None = None) -> None:
        """Begin episodes in some environments [N] bool."""
        for i in np.flatnonzero(where).tolist():
            self.members[i].reset(None if seeds is None else seeds[i])

    @property
    def look_aheads(self) -> list[Lookahead]:
        """Those of all members; a rule that members share is there for each of them."""
        return [rule for member in self.members for rule in member.look_aheads]

    @property
    def lazy(self) -> bool:
        """Whether a verdict may leave actions untested."""
        return any(layer.guardian.lazy for layer in self.guarded)

    def close(self) -> None:
        """Close every environment."""
        for member in self.members:
            member.env.close()

    def safe_sets(self) -> Array:
        """Codes [N, width] of the complete safe sets in the current states."""
        return np.stack([self.encode(member.safe_set()) for member in self.members])

    def step(self, proposed: Array, safe_sets: Array | None = None) -> Transition:
        """Certify and execute. `safe_sets` [N, width] are the complete codes, where they are known already."""
        self.finished = []
        known = [None] * len(self) if safe_sets is None else safe_sets
        rows = [self._step(member, proposed[i], known[i]) for i, member in enumerate(self.members)]
        columns: Json = {name: [row[name] for row in rows] for name in rows[0]}
        columns |= {
            name: np.array(columns[name]) for name in rows[0] if name not in ("verdicts", "stop_reasons")
        }
        return Transition(proposed_action=proposed, next_observation=self.frame, **columns)

    def _step(self, member: Member, proposed: Action, complete: Array | None) -> Json:
        """One environment's part of a transition."""
        proposed = self.actions.executed(proposed)
        if complete is None and self.described is not None:  # verdicts hold no safe set that can be stored
            complete = self.encode(member.safe_set())
        reward, terminated, truncated, info = member.step(proposed)
        verdict, executed = info.get("guardian"), "guardian_stop" not in info
        action = executed_action(proposed, info, self.actions.space.dtype)
        safe_set = self._stored_set(verdict, complete, action if executed else member.last_executed)
        final = np.zeros_like(safe_set)
        if truncated and executed:  # a truncated state is bootstrapped from
            final = self.encode(self._or_only(member.safe_set(), action))
        if info.get("game_over", terminated or truncated) or truncated:
            self.finished.append(member.finish())
        margin = np.nan if verdict is None else verdict.executed_margin
        return {
            "executed_action": self.actions.chosen(action), "reward": np.float32(reward),
            "terminated": terminated, "truncated": truncated, "safe_set": safe_set, "next_safe_set": final,
            "margin": np.float32(margin), "unsafe_event": bool(info.get("unsafe_event", False)),
            "executed": executed, "verdicts": verdict, "stop_reasons": info.get("guardian_stop", ""),
        }  # fmt: skip

    def _stored_set(self, verdict: Verdict | None, complete: Array | None, ran: Action) -> Array:
        """The code [width] of the set in which a proposal was made; `ran` is the action that ran last."""
        if verdict is None or verdict.status not in (Status.ALLOWED, Status.PROJECTED):
            # no rules, none could be asked, or nothing is allowed
            return self.encode(self._or_only(None, ran))
        if complete is not None:
            return complete
        if verdict.safe_set is None:
            return self.encode(self._or_only(None, ran))
        return self.encode(self._or_only(verdict.safe_set.knowing(np.ravel(verdict.suggestion)), ran))

    def _or_only(self, safe_set: SafeSet | None, action: Action) -> SafeSet | None:
        """What is stored for the backup: an empty or unknown set becomes the action that ran last, alone.

        A state in which the Guardian stopped is the next state of the step before: its target counts that action, as
        where an episode is truncated and the rules cannot be asked, and not the proposal that never ran.
        """
        if self.example is None:
            return None
        here = np.asarray(action)
        here = here.ravel() if here.ndim > 1 else here  # safe sets are of flat actions
        if safe_set is None or _is_empty(safe_set, here):
            return self.example.only(here)
        return safe_set

    def code(self, member: Member) -> Array:
        """The code [width] in the current state of an environment, where no action has been chosen yet."""
        blank = None if member.guarded is None else member.guarded.guardian.blank_actions(1)[0]
        return self.encode(self._or_only(member.safe_set(), blank))


def _is_empty(safe_set: SafeSet, action: Array) -> bool:
    """Whether nothing is allowed; a mask shows it without a search for the nearest action."""
    if isinstance(safe_set, Mask):
        return not safe_set.allowed.any()
    return bool(np.all(safe_set.nearest(action).empty))
