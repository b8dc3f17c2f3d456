"""A device acknowledges an epoch once: when all of its slices have staged it.

Rules. Each slice reports an epoch when nothing is left to load there. The device's acknowledgement holds what is ready
and what failed on any of them. A newer epoch from any slice begins anew; what an older one still reports is ignored.
"""

from collections.abc import Iterable

from sluicegate.domain.actions import Acknowledge
from sluicegate.domain.plan import NO_EPOCH, Epoch, follows


class Gathering:
    """The acknowledgements of the slices called ``parts``, made one."""

    def __init__(self, parts: Iterable[str]) -> None:
        self._parts = tuple(parts)
        self._epoch: Epoch = NO_EPOCH
        self._heard: dict[str, Acknowledge] = {}

    def staged(self, part: str, report: Acknowledge) -> Acknowledge | None:
        """``part`` has staged an epoch: the device's acknowledgement once it is complete, else None."""
        if report.epoch != self._epoch:
            if not follows(report.epoch, self._epoch):
                return None
            self._epoch = report.epoch
            self._heard.clear()
        self._heard[part] = report
        return self._gathered()

    def withdrawn(self, part: str, variant: str) -> Acknowledge | None:
        """What ``part`` had staged it does without from now on: the device's acknowledgement once more."""
        report = self._heard.get(part)
        if report is None or variant not in report.variants:
            return None
        left = tuple(name for name in report.variants if name != variant)
        self._heard[part] = Acknowledge(report.epoch, left, (*report.failed, variant))
        return self._gathered()

    def _gathered(self) -> Acknowledge | None:
        if any(name not in self._heard for name in self._parts):
            return None
        reports = [self._heard[name] for name in self._parts]
        ready = dict.fromkeys(v for r in reports for v in r.variants)
        failed = dict.fromkeys(v for r in reports for v in r.failed)
        return Acknowledge(self._epoch, tuple(ready), tuple(failed))
