"""Which measured candidates are served, and why the others are not. Pure.

Rules, in this order.
- One that has collapsed is out: it gives values that are not finite, or keeps less than half of what the registered
  model that it was made of knows beyond chance (chance: always the commonest class).
- One is dominated, and out, where another that is served is no slower at any batch size and as accurate. Noise is given
  to what changes the model less (which stands earlier in the list): it counts as being as accurate where it is less so
  by no more than 1.96 standard errors of the difference on the same rows, and needs to be no faster. A later one must
  be as accurate by the number, and faster beyond the noise, or more accurate beyond it.
- Two were measured in turns, so that a slow spell of the machine falls on both, and are compared round by round. One is
  faster at a batch size where it took less in the median, at 99.5 % confidence (of few rounds: where its slowest was
  faster than the other's fastest); or where it took less processor time, at that confidence and by a twentieth at least
  of what a batch of the other takes undisturbed. Processor time is hardly the busier machine's matter: what computes
  clearly less is clearly faster, whatever else ran.
- Of two that were made of different registered models neither changes the other: there the more accurate by the number
  dominates where it is no slower beyond the noise, so that what is clearly faster always stays.
- What is left is served: each is the best at some trade of accuracy for time. A registered model itself is judged like
  any other, except that it cannot collapse.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from sluicegate.profiles.catalogue.profiler import Sample, median_interval
from sluicegate.profiles.registration.task_metrics import Score

CONFIDENT = 1.96
"""Standard errors of a difference below which two accuracies are not told apart."""
RETAINED = 0.5
"""Share of the registered model's skill below which a variant has collapsed."""
_TOLD_APART = 2.81
"""Standard deviations between a median of ratios and 1: 99.5 %, since there are some ten batch sizes to differ at."""
_FEW = 11
"""Rounds below which an interval of that confidence is the whole range, or nearly."""
_WORTH = 0.05
"""Of the time of a batch, that is saved: less processor time is of no account."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What was measured of one. ``gap``: how much less accurate than its registered model on the same rows.

    ``rounds``: batch -> samples, one a round of the profiler, so that the same place in two candidates is the same
    round. ``finite``: no answer was NaN or infinite. ``model``: which of
    the registered models it was made of, where there are several.
    """

    name: str
    score: Score
    gap: Score
    rounds: Mapping[int, Sequence[Sample]]
    finite: bool = True
    model: str = ""


Apart = Callable[[str, str], float]
"""Names of two candidates -> standard error of the difference of their accuracies on the same rows."""


def verdicts(candidates: Sequence[Candidate], chance: float, apart: Apart | None = None) -> dict[str, str]:
    """Name -> why it is not served; "" for those that are.

    The first candidate of each model is that model as registered. ``apart``: for candidates of different models.
    """
    reasons: dict[str, str] = {}
    originals: dict[str, Candidate] = {}
    for candidate in candidates:
        original = originals.setdefault(candidate.model, candidate)
        why = _collapsed(candidate, original, chance) if candidate is not original else ""
        if why:
            reasons[candidate.name] = why
    rest = [(place, c) for place, c in enumerate(candidates) if c.name not in reasons]
    by_accuracy = sorted(rest, key=lambda found: -found[1].score.value)
    served: list[tuple[int, Candidate]] = []
    for found in by_accuracy:
        if not any(_dominates(by, found) for by in served):
            served = [s for s in served if not _dominates(found, s)]
            served.append(found)
    # What dominated one may have been bettered since by another that, within the noise, does not dominate it as well.
    for found in by_accuracy:
        if found not in served and not any(_dominates(by, found) for by in served):
            served.append(found)
    for found in rest:
        better = next((s[1] for s in served if found not in served and _dominates(s, found)), None)
        reasons[found[1].name] = "" if better is None else _dominated(found[1], better, apart)
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


def _dominates(one: tuple[int, Candidate], another: tuple[int, Candidate]) -> bool:
    (place, by), (other_place, other) = one, another
    batches = set(by.rounds) & set(other.rounds)
    if not batches or max(by.rounds) < max(other.rounds) or _faster(other, by):
        return False
    lead = by.score.value - other.score.value
    if by.model != other.model:
        return lead > 0.0 or (lead == 0.0 and (bool(_faster(by, other)) or place < other_place))
    noise = _noise(by, other)
    if place < other_place:
        return lead >= -noise
    return lead >= 0.0 and (lead > noise or bool(_faster(by, other)))


def _faster(by: Candidate, other: Candidate) -> list[int]:
    """Batch sizes at which ``by`` is faster beyond the noise."""
    return [b for b in sorted(set(by.rounds) & set(other.rounds)) if _clearly_less(by.rounds[b], other.rounds[b])]


def _clearly_less(one: Sequence[Sample], other: Sequence[Sample]) -> bool:
    pairs = list(zip(one, other, strict=False))
    undisturbed = min(b.wall for b in other)
    saved = [(b.cpu - a.cpu) / undisturbed for a, b in pairs]
    if len(pairs) < _FEW:
        return max(a.wall for a in one) < min(b.wall for b in other) or min(saved) > _WORTH
    if median_interval([a.wall / b.wall for a, b in pairs], _TOLD_APART)[1] < 1.0:
        return True
    return median_interval(saved, _TOLD_APART)[0] > _WORTH


def _noise(one: Candidate, another: Candidate, apart: Apart | None = None) -> float:
    """Difference in accuracy below which the two are not told apart."""
    if one.model != another.model and apart is not None:
        return CONFIDENT * apart(one.name, another.name)
    return CONFIDENT * math.hypot(one.gap.se, another.gap.se)  # of one model both are differences from it


def _dominated(candidate: Candidate, by: Candidate, apart: Apart | None) -> str:
    faster = _faster(by, candidate)
    lead = 100 * (by.score.value - candidate.score.value)
    noise = 100 * _noise(by, candidate, apart)
    accuracy = f"{lead:.1f} points more accurate" if lead > noise else "as accurate"
    accuracy += f" within the noise ({lead:+.1f} ± {noise:.1f} points)" if lead and lead <= noise else ""
    if not faster:
        return f"dominated by {by.name}, which is {accuracy}, and as fast within the noise"
    b = faster[-1]
    ratio = median(s.wall for s in candidate.rounds[b]) / median(s.wall for s in by.rounds[b])
    return f"dominated by {by.name}, which is {accuracy}, and {ratio:.2f}x as fast at batch {b}"
