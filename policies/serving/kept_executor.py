"""An executor that is kept alive: one whose process ends, at work or idle, is started again with what it held.

Rules.
- Batches and loads wait until it is whole again: started, and all that the slice holds is loaded once more, one after
  the other. What fails to be loaded again is done without.
- A batch that failed because the process ended under it is gone on with then.
- A load that failed while the process ended, perhaps by what it ran meanwhile, is tried once more.
- What lived for less than ``_LIVES`` seconds is started again only when they have passed.
- One that ends while it is made whole is started again.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from math import inf
from typing import assert_never

from sluicegate.domain.errors import IllegalEventError
from sluicegate.policies.routing.known_poison import KnownPoison
from sluicegate.policies.serving.device_actions import (
    DeviceAction,
    LoadVariant,
    ReloadVariant,
    RestartExecutor,
    RunBatch,
)
from sluicegate.policies.serving.device_events import (
    BatchFailed,
    ExecutorEnded,
    ExecutorEvent,
    ExecutorStarted,
    Failure,
    Reloaded,
)
from sluicegate.policies.serving.running_batch import Batch

_LIVES = 1.0
KILLS = 6
"""Times that a variant may end its executor in ``KILLS_WITHIN`` seconds before it is done without. One input ends it
once, with its batch; twice where it cannot be run apart after that."""
KILLS_WITHIN = 60.0


class KeptExecutor:
    """Number ``seat`` of slice ``part``, started at ``now``; ``poison`` is known to end it. ``kills``: by variant, of
    all executors of the slice. ``batch``: what runs on it.

    ``whole``: it runs, and holds what it should. Until then ``waits`` what is to be run, ``failure`` says how the
    batch failed that it ended under, and ``died`` whether it has ended once more. ``loaded_at``: when a load of it
    ended last.
    """

    __slots__ = (
        "_again",
        "_before",
        "_deaths",
        "_kills",
        "_left",
        "_load",
        "_loads",
        "_started",
        "batch",
        "died",
        "failure",
        "loaded_at",
        "loads_last",
        "part",
        "poison",
        "seat",
        "waits",
        "whole",
    )

    def __init__(
        self, part: str, now: float, poison: KnownPoison, seat: int = 0, kills: dict[str, deque[float]] | None = None
    ) -> None:
        self.seat = seat
        self.batch: Batch | None = None
        self.loads_last = ""
        self.loaded_at = -inf
        self.poison = poison
        self.whole = True
        self.waits: RunBatch | None = None
        self.failure: BatchFailed | None = None
        self.part = part
        self._started = now
        self.died = False
        self._deaths = 0
        self._load: LoadVariant | None = None  # under way: one at a time is asked for
        self._before: int | None = 0  # deaths before it; None: it is tried once more
        self._again = False  # that waits
        self._loads: dict[str, LoadVariant] = {}  # what each variant was loaded by
        self._kills = {} if kills is None else kills
        self._left: deque[ReloadVariant] | None = None  # to be loaded again; None: it does not run yet

    def run(self, batch: RunBatch, actions: list[DeviceAction]) -> None:
        """Run it, now or when it can be."""
        if self.whole:
            actions.append(batch)
        else:
            self.waits = batch

    def abandon(self) -> None:
        """What waits to be run is others' now."""
        if self.waits is not None:
            self.waits, self.failure = None, BatchFailed(self.part, "it was abandoned", Failure.BLAMELESS, self.seat)

    def load(self, load: LoadVariant, actions: list[DeviceAction]) -> None:
        """Load it; only what is whole is asked, for one at a time."""
        self.loads_last = load.variant
        self._load, self._before = load, self._deaths
        actions.append(load)

    @property
    def loading(self) -> bool:
        """Whether a load is under way."""
        return self._load is not None

    def loaded(self, variant: str, ok: bool, now: float, actions: list[DeviceAction]) -> bool:
        """A load has ended; whether that is the end of it. Raises IllegalEventError."""
        load, before = self._load, self._before
        if load is None or load.variant != variant:
            raise IllegalEventError(f"{variant} ended loading on {self.part}, where {load} is under way")
        if not ok and before is not None and before != self._deaths:
            self._before = None
            self._again = not self.whole
            if self.whole:
                actions.append(load)
            return False
        self._load, self.loaded_at = None, now
        if ok:
            self._loads[variant] = load
        return True

    def killed(self, variant: str, now: float) -> bool:
        """``variant`` ended it; whether that was once too often of late."""
        kills = self._kills.setdefault(variant, deque(maxlen=KILLS))
        kills.append(now)
        if len(kills) < KILLS or now - kills[0] > KILLS_WITHIN:
            return False
        kills.clear()
        return True

    def told(self, event: ExecutorEvent, held: Iterable[str], now: float) -> Sequence[DeviceAction]:
        """Its process has ended, or it is being made whole, to hold ``held``. Raises IllegalEventError."""
        match event:
            case ExecutorEnded():
                self._deaths += 1
                self.died = not self.whole
                if self.died:
                    return ()
                self.whole = False
                return self._restart(now)
            case ExecutorStarted():
                if self.whole or self._left is not None:
                    raise IllegalEventError(f"the executor of {self.part} was started at {now}, and runs")
                self._started = now
                loads = [self._loads[name] for name in held]
                self._left = deque(
                    ReloadVariant(self.part, one.variant, one.max_batch, one.within, self.seat) for one in loads
                )
            case Reloaded():
                if self._left is None:
                    raise IllegalEventError(f"{event} at {now}, which nobody asked for")
            case _:
                assert_never(event)
        if self.died:
            return self._restart(now)
        if self._left:
            return (self._left.popleft(),)
        return self._whole()

    def _restart(self, now: float) -> Sequence[DeviceAction]:
        self.died = False
        self._left = None
        # A clock that was set meanwhile must not hold it up for longer.
        return (RestartExecutor(self.part, min(_LIVES, max(0.0, self._started + _LIVES - now)), self.seat),)

    def _whole(self) -> Sequence[DeviceAction]:
        self.whole, self._left = True, None
        waits = (self._load if self._again else None, self.waits)
        self._again, self.waits = False, None
        return tuple(action for action in waits if action is not None)
