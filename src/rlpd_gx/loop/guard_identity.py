"""Whether a guard is still the one that a run was trained under: its rules, and every option beside them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlpd_gx import guards
from rlpd_gx.errors import GxError
from rlpd_gx.guardian import Guardian
from rlpd_gx.guardian.named import BESIDE_RULES
from rlpd_gx.loop.task import Task
from rlpd_gx.rules import Atom, conjuncts, fingerprint, unreadable
from rlpd_gx.trees import JsonMapping

# the embedding is covered by the rules' fingerprint
OPTIONS = ("state", *(name for name in BESIDE_RULES if name != "embedding"))


@dataclass(frozen=True, eq=False)
class GuardIdentity:
    """What a guard is made of, as fingerprints that are stored with checkpoints and policies."""

    fingerprints: Mapping[str, str]
    unreadable: tuple[str, ...]
    """What the fingerprints cannot cover: then they match in no other process."""

    @classmethod
    def of(cls, rules: Any, options: JsonMapping, guard: str, guardian: Guardian) -> "GuardIdentity":
        """That of rules (one, or a list) with their options, used by a guard."""
        parts = {name: options.get(name) for name in OPTIONS}
        if ":" in guard:  # somebody's own; ours are known by their name, which is a setting
            parts["guard"] = guards.find(guard)
        atoms: list[Atom] = [atom for rule in conjuncts(rules) for atom in rule.atoms()]
        dark = [f"rule {atom.name!r}: {what}" for atom in atoms for what in unreadable(atom.fn)]
        dark += [f"{name}: {what}" for name, part in parts.items() for what in unreadable(part)]
        found = {"rules": guardian.fingerprint} | {name: fingerprint(part) for name, part in parts.items()}
        return cls(found, tuple(dark))

    @classmethod
    def of_task(cls, task: Task) -> "GuardIdentity":
        """That of a run; empty without rules."""
        run, guardian = task.config.run, task.example.guardian
        if not run.rules or guardian is None:
            return cls({}, ())
        return cls.of(task.example.rules, task.example.options, run.guard, guardian)

    def refuse_changes(
        self, saved: Mapping[str, str], source: str, rules: str, since: str, remedy: str
    ) -> None:
        """Raise unless everything is what was saved."""
        names = [*self.fingerprints, *(name for name in saved if name not in self.fingerprints)]
        changed = [name for name in names if saved.get(name) != self.fingerprints.get(name)]
        if not changed:
            return
        what = f"the {' and '.join(changed)} of {rules or 'no rules'} changed since {since}; {remedy}"
        if self.unreadable:
            what = (
                f"whether {rules} changed since {since} cannot be known, since a fingerprint cannot cover "
                f"{', '.join(self.unreadable)}; read such things when the module is imported, and {remedy}"
            )
        raise GxError(f"{source}: {what}")
