"""Processor sharing: batches that run on one device, or on one MIG instance by MPS, slow each other down.

A batch takes a part of what it runs on (PROTEAN's FBR, of memory bandwidth). While the parts of those that run add up
to more than 1, each takes so many times as long as alone. Where each takes all, n batches go on at 1/n of their speed
(egalitarian processor sharing). Slices of their own (MIG) do not share and do not need this.
"""

from dataclasses import dataclass
from typing import Any

from sluicegate.simulator.engine.timeline import Happening, Timeline

_DONE = 1e-12


@dataclass(slots=True)
class _Job:
    left: float
    part: float
    happening: Happening
    argument: Any


class SharedProcessor:
    """The compute of one device or instance. ``begin`` a job of so many isolated seconds; it is told when it ends."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._jobs: list[_Job] = []
        self._since = timeline.now
        self._version = 0

    def begin(self, work: float, happening: Happening, argument: Any, now: float, part: float = 1.0) -> None:
        """Start a job of ``work`` seconds (as long as it would take alone) that takes ``part`` of the processor."""
        self._progress(now)
        self._jobs.append(_Job(work, part, happening, argument))
        self._arm(now)

    def clear(self, now: float) -> None:
        """The device died: no job of it ends."""
        self._jobs.clear()
        self._progress(now)
        self._version += 1

    def stop(self, happening: Happening, now: float) -> None:
        """The process of the jobs that were to tell ``happening`` is gone: none of them goes on, or ends."""
        self._progress(now)
        self._jobs = [job for job in self._jobs if job.happening != happening]
        self._arm(now)

    @property
    def _slowdown(self) -> float:
        return max(1.0, sum(job.part for job in self._jobs))

    def _progress(self, now: float) -> None:
        if self._jobs:
            done = (now - self._since) / self._slowdown
            for job in self._jobs:
                job.left -= done
        self._since = now

    def _arm(self, now: float) -> None:
        self._version += 1
        if self._jobs:
            next_end = now + max(0.0, min(job.left for job in self._jobs)) * self._slowdown
            self._timeline.at(next_end, self._ends, self._version)

    def _ends(self, version: int, now: float) -> None:
        if version != self._version:
            return
        self._progress(now)
        # The job this was armed for ends now whatever rounding left of it.
        least = min(job.left for job in self._jobs)
        ended = [job for job in self._jobs if job.left <= max(least, _DONE)]
        self._jobs = [job for job in self._jobs if job.left > max(least, _DONE)]
        self._arm(now)
        for job in ended:
            job.happening(job.argument, now)
