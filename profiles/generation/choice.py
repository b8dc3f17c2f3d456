"""Which measured candidates are served, and why the others are not. Pure.

Rules, in this order.
- One that has collapsed is out: it gives values that are not finite, or keeps less than half of what the registered
  model knows beyond chance (chance: always the commonest class).
- One is dominated, and out, where another that is served is at least as accurate on the data and at no batch size
  slower than the noise of the measurement, and is faster at some, or more accurate, or simply came first. The noise is
  that of the confidence intervals of the medians: those that overlap do not tell two variants apart.
- What is left is served: each is the best at some trade of accuracy for time. The registered model itself is judged
  like any other, except that it cannot collapse.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profiles.generation.metrics import Score
from profiles.profiler import Spread

RETAINED = 0.5
"""Share of the registered model's skill below which a variant has collapsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What was measured of one. ``gap``: how much less accurate than the registered model on the same rows.

    ``latency``: batch -> spread of the time it takes. ``finite``: no answer was NaN or infinite.
    """

    name: str
    score: Score
    gap: Score
    latency: Mapping[int, Spread]
    finite: bool = True


def verdicts(candidates: Sequence[Candidate], chance: float) -> dict[str, str]:
    """Name -> why it is not served; "" for those that are. The first candidate is the registered model."""
    reasons: dict[str, str] = {}
    original = candidates[0]
    for candidate in candidates:
        why = _collapsed(candidate, original, chance) if candidate is not original else ""
        if why:
            reasons[candidate.name] = why
    served: list[Candidate] = []
    rest = [c for c in candidates if c.name not in reasons]
    by_accuracy = sorted(rest, key=lambda c: -c.score.value)  # stable: of equals, what changes least comes first
    for candidate in by_accuracy:
        if not any(_dominates(by, candidate) for by in served):
            served = [s for s in served if not (_dominates(candidate, s) and _faster(candidate, s))]
            served.append(candidate)
    # What dominated one may have been bettered since by another that, within the noise, does not dominate it as well.
    for candidate in by_accuracy:
        if candidate not in served and not any(_dominates(by, candidate) for by in served):
            served.append(candidate)
    for candidate in rest:
        by = next((s for s in served if candidate not in served and _dominates(s, candidate)), None)
        reasons[candidate.name] = "" if by is None else _dominated(candidate, by)
    return {c.name: reasons[c.name] for c in candidates}


def _collapsed(candidate: Candidate, original: Candidate, chance: float) -> str:
    if not candidate.finite:
        return "collapsed: it answers values that are not finite"
    skill = original.score.value - chance
    if candidate.score.value - chance < RETAINED * skill:
        return (
            f"collapsed: {100 * candidate.score.value:.1f} % where the registered model reaches "
            f"{100 * original.score.value:.1f} % and chance {100 * chance:.1f} %"
        )
    return ""


def _dominates(by: Candidate, other: Candidate) -> bool:
    batches = sorted(set(by.latency) & set(other.latency))
    if by.score.value < other.score.value or not batches or max(by.latency) < max(other.latency):
        return False
    return not any(by.latency[b].low > other.latency[b].high for b in batches)


def _faster(by: Candidate, other: Candidate) -> list[int]:
    """Batch sizes at which ``by`` is faster beyond the noise."""
    return [b for b in sorted(set(by.latency) & set(other.latency)) if by.latency[b].high < other.latency[b].low]


def _dominated(candidate: Candidate, by: Candidate) -> str:
    faster = _faster(by, candidate)
    gain = by.score.value - candidate.score.value
    accuracy = f"{100 * gain:.1f} points more accurate" if gain > 0.0 else "as accurate"
    if not faster:
        return f"dominated by {by.name}: {accuracy} there, and as fast within the noise"
    b = faster[-1]
    ratio = candidate.latency[b].middle / by.latency[b].middle
    return f"dominated by {by.name}: {accuracy} there, and {ratio:.2f}x as fast at batch {b}"
