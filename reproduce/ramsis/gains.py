"""What systems gain over one another at the same places, workers saved at equal accuracy, and what the paper has."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PLOTTED = 0.05
"""Points with more violations are not plotted, nor compared, as in the paper."""
MOST_WORKERS = 100
"""x is workers where none is larger: loads begin above."""
PAPER = {
    "5": (
        "image: +4.43 points over model-switching, +4.35 over jellyfish-plus, 15.1 at most; 20.0 % and 17.5 % of "
        "workers saved at equal accuracy",
        "text: +1.93 and +2.01 points; 25.3 % and 31.3 % of workers saved",
        "its artifact, image, 150 ms, 60 to 80 workers: +3.48 points (4.63 at most) and +5.70 (8.07 at most)",
    ),
    "6": (
        "its artifact: +1.84 points (6.71 at most) over model-switching, +3.70 (15.04 at most) over jellyfish-plus",
        "its artifact, image, 150 ms (table; model-switching; jellyfish-plus): 400 queries/s .84228; .84228; .80608. "
        "2000: .74905; .73004; .73004. 3200: .64678; .57972; .57972",
    ),
    "7": ("its artifact expects .84228 at 400 queries/s and 60 workers, .74875 at 2000, .63932 at 3200",),
    "8": ("1355 s to generate a table of 60 variants",),
    "10": ("132 s to generate a table with D = 100, 14.6 s with D = 10, 115.5 s with model-based bins",),
    "11": ("3015 s to generate a table for variable batches, 132 s for maximal ones",),
    "12": ("no numbers known to us: the shape is compared",),
}
"""Figure -> numbers of the paper (Mendoza et al., EuroSys 2024) and of its artifact."""


@dataclass(frozen=True)
class Point:
    """One system at one place of a figure. ``x``: workers, queries/s or slack bins; ``accuracy_half`` and
    ``violation_half``: half of the 95 % intervals, where it is a mean of several draws."""

    panel: str
    system: str
    x: float
    accuracy: float
    violation: float
    expected_accuracy: float | None = None
    expected_violation: float | None = None
    cpu_s: float | None = None
    accuracy_half: float | None = None
    violation_half: float | None = None


def good(p: Point) -> bool:
    """Whether the paper would plot it."""
    return p.violation <= PLOTTED


def saved(points: Sequence[Point], system: str, rule: str) -> tuple[float, float]:
    """Mean shares of workers saved by ``system`` at the accuracy that ``rule`` has with K workers; NaN where unknown.

    With numbers of workers interpolated between those measured, and rounded up to one that was measured.
    """
    between: list[float] = []
    measured: list[float] = []
    for panel in sorted({p.panel for p in points}):
        ours = sorted((p.x, p.accuracy) for p in points if p.panel == panel and p.system == system and good(p))
        if len(ours) < 2:
            continue
        workers, accuracy = np.array(ours).T
        accuracy = np.maximum.accumulate(accuracy)
        for p in points:
            if p.panel == panel and p.system == rule and good(p) and p.accuracy <= accuracy[-1]:
                between.append(1.0 - float(np.interp(p.accuracy, accuracy, workers)) / p.x)
                measured.append(1.0 - float(workers[np.argmax(accuracy >= p.accuracy)]) / p.x)
    return (float(np.mean(between)), float(np.mean(measured))) if between else (float("nan"), float("nan"))


def gains(points: Sequence[Point], rules: Sequence[str]) -> list[str]:
    """By task: accuracy over each of ``rules`` where both are plotted, in points, and workers saved."""
    said = []
    for task in sorted({p.panel.split(",")[0] for p in points}):
        mine = [p for p in points if p.panel.startswith(task)]
        for ours in sorted({p.system for p in mine} - set(rules)):
            said += [line for rule in rules for line in _gain(mine, ours, rule, task)]
    return said


def _gain(points: Sequence[Point], ours: str, rule: str, task: str) -> list[str]:
    base = {(p.panel, p.x): p.accuracy for p in points if p.system == rule and good(p)}
    found = [
        100.0 * (p.accuracy - base[p.panel, p.x])
        for p in points
        if p.system == ours and good(p) and (p.panel, p.x) in base
    ]
    if not found:
        return []
    text = f"{task}: {ours} over {rule}: {np.mean(found):+.2f} points on average, {max(found):+.2f} at most"
    if any(p.x > MOST_WORKERS for p in points):
        return [text]
    between, measured = saved(points, ours, rule)
    if np.isnan(between):
        return [text]
    return [f"{text}; {between:.1%} of workers saved at equal accuracy ({measured:.1%} in the steps measured)"]
