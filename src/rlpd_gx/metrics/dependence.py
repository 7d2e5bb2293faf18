"""How much a policy depends on its guard."""

from rlpd_gx.metrics.episodes import returns, safety
from rlpd_gx.metrics.subject import Found, Played, Subject


def guard_dependence(guarded: Played, unguarded: Played) -> dict[str, float]:
    """Return, unsafe events and executed forbidden actions of one policy with its guard and without it.

    Then what the guard adds to the return, and how many unsafe events per step it prevents, where they are reported.
    """
    found: dict[str, float] = {}
    for name, played in (("with_guard", guarded), ("without_guard", unguarded)):
        found[f"return_{name}"] = returns(played.episodes)["return_mean"]
        if (rate := safety(played.episodes).get("unsafe_event_rate")) is not None:
            found[f"unsafe_event_rate_{name}"] = rate
        found[f"forbidden_executed_rate_{name}"] = played.tally.rates()["forbidden_executed_rate"]
    found["return_added"] = found["return_with_guard"] - found["return_without_guard"]
    if "unsafe_event_rate_without_guard" in found:
        prevented = found["unsafe_event_rate_without_guard"] - found["unsafe_event_rate_with_guard"]
        found["unsafe_event_rate_prevented"] = prevented
    return found


def dependence(subject: Subject) -> Found:
    """Guard dependence of the evaluation episodes; both start from the same seeds."""
    return {**guard_dependence(subject.played(), subject.played(guarded=False))}
