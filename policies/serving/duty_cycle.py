"""Several apps in turn on one slice: a duty cycle (Nexus, 6.1; spread-drop, 3.5 with its condition mended).

Rules.
- The executor is offered round robin: after an app has run, the others come first. An app without work is skipped.
- So an app waits at most one cycle D, the sum of the longest batches of all apps hosted, between two offers: S = D.
- Batches are sized so that D + P <= SLO for each app: with n apps every batch takes at most the shortest SLO / (n + 1),
  and the largest batch within that is taken. (The paper asks for 2 D <= SLO, which is sufficient, not necessary.)
- Policies that keep promises (``SpreadBatching``) are told their batch and the rest of the cycle, which is what their
  guarantee rests on; ``sluice sustain --others-ms`` gives the rate. Others are only given their turn.
"""

from typing_extensions import override

from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.policies.batching.spread import SpreadBatching
from sluicegate.policies.promises.sustainable_rate import processing_bound
from sluicegate.policies.serving.slice_scheduler import Lane, Station


def cycle_batches(curves: dict[str, LatencyCurve], slos: dict[str, float]) -> dict[str, int]:
    """The largest batch of each app with which every app's cycle and batch fit its SLO; at least 1."""
    budget = min(slos.values()) / (len(curves) + 1)
    batches = {}
    for app, curve in curves.items():
        fitting = [b for b in range(1, curve.max_batch + 1) if processing_bound(curve, b) <= budget]
        batches[app] = max(fitting, default=1)
    return batches


def turn_of(app: str, curves: dict[str, LatencyCurve], slos: dict[str, float]) -> tuple[int, float]:
    """The batch of ``app`` in the cycle of all ``curves``, and the seconds of each cycle that go to the others."""
    batches = cycle_batches(curves, slos)
    return batches[app], sum(processing_bound(c, batches[a]) for a, c in curves.items() if a != app)


class DutyCycleStation(Station):
    """A Station whose apps take turns. See the module's rules."""

    __slots__ = ()

    @override
    def order(self, lanes: list[Lane]) -> list[Lane]:
        """Round robin by name, beginning after the app that ran last; within an app strict queries first."""
        lanes.sort(key=lambda lane: (lane.app <= self.last_app, lane.app, not lane.strict))
        return lanes

    @override
    def hosting_changed(self, now: float) -> None:
        """Size the batches of the cycle anew."""
        hosted = {lane.app: lane for lane in self._lanes if lane.strict and lane.hosted}
        curves = {app: lane.hosted[0].curve for app, lane in hosted.items()}
        if not curves:
            return
        slos = {app: lane.slo for app, lane in hosted.items()}
        for lane in self._lanes:
            if lane.app in curves and isinstance(lane.policy, SpreadBatching):
                lane.policy.in_cycle(*turn_of(lane.app, curves, slos))
