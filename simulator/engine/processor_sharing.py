"""Processor sharing: batches that run on one device at a time share it evenly.

With n batches running each goes on at 1/n of its isolated speed (egalitarian processor sharing). Slices of their own
(MIG) do not share and do not need this; co-located workers on one GPU or core do.
"""

from dataclasses import dataclass
from typing import Any

from sluicegate.simulator.engine.timeline import Happening, Timeline

_DONE = 1e-12


@dataclass(slots=True)
class _Job:
    left: float
    happening: Happening
    argument: Any


class SharedProcessor:
    """One device's compute. ``begin`` a job of so many isolated seconds; it is told when it ends."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._jobs: list[_Job] = []
        self._since = timeline.now
        self._version = 0

    def begin(self, work: float, happening: Happening, argument: Any, now: float) -> None:
        """Start a job of ``work`` seconds (as long as it would take alone)."""
        self._progress(now)
        self._jobs.append(_Job(work, happening, argument))
        self._arm(now)

    def clear(self, now: float) -> None:
        """The device died: no job of it ends."""
        self._jobs.clear()
        self._progress(now)
        self._version += 1

    def _progress(self, now: float) -> None:
        if self._jobs:
            done = (now - self._since) / len(self._jobs)
            for job in self._jobs:
                job.left -= done
        self._since = now

    def _arm(self, now: float) -> None:
        self._version += 1
        if self._jobs:
            next_end = now + max(0.0, min(job.left for job in self._jobs)) * len(self._jobs)
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
