"""Workers with queues of their own behind a strict round robin: the live batching policies, and nothing else.

What the whole simulator does at a fraction of its time, where there is one app, one kind of worker, one plan and no
fault: each worker then sees every K-th query and nothing of the others. Policies are told of arrivals and free
executors exactly as a station does; wakes that a policy asks for are kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, nan

import numpy as np
from numpy.typing import NDArray

from sluicegate.domain.actions import Run, StationAction, WakeAt
from sluicegate.domain.events import Arrived, Finished, Hosted, HostingChanged, Offered, TurnsTold, Woke
from sluicegate.domain.query import Query
from sluicegate.policies.mdp_serving.table_policy import TableSelection
from sluicegate.policies.protocols import BatchingPolicy

_OFFERED = Offered()
_WOKE = Woke()


@dataclass(slots=True)
class Tally:
    """One worker's counts. ``gained``: accuracy summed over queries on time."""

    queries: int = 0
    on_time: int = 0
    gained: float = 0.0
    batches: int = 0

    @property
    def accuracy(self) -> float:
        """Mean over queries on time (0..1), NaN if none."""
        return self.gained / self.on_time if self.on_time else nan

    @property
    def violation(self) -> float:
        """Share of queries not answered in time."""
        return 1.0 - self.on_time / self.queries if self.queries else 0.0


def serve_by_workers(
    arrivals: NDArray[np.float64],
    *,
    slo: float,
    workers: int,
    hosted: Sequence[Hosted],
    make_policy: Callable[[], BatchingPolicy],
    service: Callable[[str, int], float],
    random_dispatch: NDArray[np.int64] | None = None,
    phase_delay: float | None = None,
) -> Tally:
    """Serve ``arrivals`` (ascending seconds), each by the next worker, or by ``random_dispatch`` (one a query).

    ``service``: seconds of (variant, queries). ``phase_delay``: queries bring their turn, and policies are told at each
    decision how many turns had been given that many seconds before; None: they are not.
    """
    tally = Tally()
    for worker in range(workers):
        mine = arrivals[worker::workers] if random_dispatch is None else arrivals[random_dispatch == worker]
        policy = make_policy()
        policy.handle(HostingChanged("app", tuple(hosted), slo), 0.0)
        served = _Worker(policy, {h.variant: h.accuracy for h in hosted}, service, tally)
        if phase_delay is not None:
            served.watch(arrivals, phase_delay)
        served.serve(mine.tolist(), slo)
    return tally


class _Worker:
    def __init__(
        self, policy: BatchingPolicy, accuracy: dict[str, float], service: Callable[[str, int], float], tally: Tally
    ) -> None:
        self._policy = policy
        self._accuracy = accuracy
        self._service = service
        self._tally = tally
        self._running: Run | None = None
        self._ends = inf
        self._wake = inf
        self._central: NDArray[np.float64] | None = None
        self._delay = 0.0

    def watch(self, central: NDArray[np.float64], delay: float) -> None:
        """Tell the policy of turns, each of the ``central`` arrivals being one."""
        self._central, self._delay = central, delay

    def _turns(self, at: float) -> int:
        """Given by ``at``; -1 where they are not watched."""
        return -1 if self._central is None else int(np.searchsorted(self._central, at, side="right"))

    def serve(self, arrivals: Sequence[float], slo: float) -> None:
        """All of ``arrivals``, to the end of the last."""
        for number, at in enumerate(arrivals):
            self._until(at)
            query = Query(str(number), "app", at, at + slo)
            self._act(self._policy.handle(Arrived(query, self._turns(at)), at), at)
            self._offer(at)
        self._until(inf)
        self._tally.queries += len(arrivals)

    def _until(self, limit: float) -> None:
        """What happens before ``limit``: ends of batches, wakes."""
        while True:
            at = min(self._ends, self._wake)
            if at >= limit or at == inf:
                return
            if self._ends <= self._wake:
                self._finish(at)
            else:
                self._wake = inf
                self._act(self._policy.handle(_WOKE, at), at)
            self._offer(at)

    def _finish(self, at: float) -> None:
        run = self._running
        assert run is not None  # an end is set with a batch
        self._running, self._ends = None, inf
        good = sum(1 for q in run.queries if at <= q.deadline)
        self._tally.on_time += good
        self._tally.gained += good * self._accuracy[run.variant]
        self._tally.batches += 1
        self._act(self._policy.handle(Finished("app", run.variant, run.rows, 0.0), at), at)

    def _offer(self, at: float) -> None:
        if self._running is None and self._policy.queued:
            if self._central is not None and isinstance(self._policy, TableSelection):
                known = at - self._delay
                self._policy.turned(TurnsTold("app", 0.0, self._turns(known), known))
            self._act(self._policy.handle(_OFFERED, at), at)

    def _act(self, actions: Sequence[StationAction], at: float) -> None:
        for action in actions:
            match action:
                case Run():
                    self._running = action
                    self._ends = at + self._service(action.variant, action.rows)
                case WakeAt():
                    self._wake = min(self._wake, action.at)
                case _:
                    pass  # given up, or told to the operator
