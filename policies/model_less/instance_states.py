"""What instances there are: a worker's record of its own, and the index that others rebuild from all records.

Rules.
- A worker looks at each instance it holds once a ``period``: rows answered in it, and how long batches took beside the
  profile. An instance that ran nothing keeps no grudge (it is ACTIVE).
- An instance is INACTIVE while it is not loaded; else OVERLOADED from its peak rate on, until it is below 0.95 of it;
  else INTERFERED while it takes more than 1.5 times its profile, until below 1.25 times; else ACTIVE (INFaaS, ATC 2021,
  4.2). The function is total, hence it also goes from INTERFERED to OVERLOADED, which the paper's figure lacks.
- A record is written when an instance comes, when its state changes, and when half of its lease is over; it is ended by
  a tombstone when the instance goes. What a worker finds recorded of itself at its start, and does not hold, it ends.
- An index believes a record until it expires: workers that died leave records behind, and nobody else may end them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sluicegate.domain.fleet.instance import Instance, InstanceState

LEAVES_OVERLOAD, INTERFERES, LEAVES_INTERFERENCE = 0.95, 1.5, 1.25
LEASE = 10.0
"""Seconds that a record counts for."""


def instance_state(
    *, loaded: bool, qps: float, peak: float, latency: float, profiled: float, before: InstanceState
) -> InstanceState:
    """By the rules above. Rates in queries/s, latencies in seconds (0: nothing ran)."""
    if not loaded:
        return InstanceState.INACTIVE
    if qps >= peak * (LEAVES_OVERLOAD if before is InstanceState.OVERLOADED else 1.0):
        return InstanceState.OVERLOADED
    if latency > profiled * (LEAVES_INTERFERENCE if before is InstanceState.INTERFERED else INTERFERES):
        return InstanceState.INTERFERED
    return InstanceState.ACTIVE


@dataclass(frozen=True, slots=True)
class Held:
    """A variant loaded on a slice, and what it did in the last ``window`` seconds. ``peak``: rows/s."""

    app: str
    variant: str
    slice: str
    peak: float
    rows: int = 0
    slowdown: float = 0.0


@dataclass(frozen=True, slots=True)
class Recorded:
    """Write this record; None ends the one of ``key``."""

    key: str
    instance: Instance | None


class InstanceRecord:
    """Of one worker's instances."""

    __slots__ = ("_device", "_known", "_lease")

    def __init__(self, device: str, *, lease: float = LEASE) -> None:
        self._device = device
        self._lease = lease
        self._known: dict[str, Instance] = {}

    def found(self, instance: Instance) -> None:
        """A record of this worker stands on the topic, from before its start."""
        if instance.device == self._device:
            self._known.setdefault(instance.key, replace(instance, expires=0.0))

    def looked(self, held: Iterable[Held], window: float, now: float) -> list[Recorded]:
        """What to write after a look at everything that is held."""
        written: list[Recorded] = []
        seen = set()
        for one in held:
            fresh = self._judged(one, window, now)
            seen.add(fresh.key)
            before = self._known.get(fresh.key)
            if before is None or before.state is not fresh.state or before.expires - now < self._lease / 2:
                self._known[fresh.key] = fresh
                written.append(Recorded(fresh.key, fresh))
        gone = [key for key in self._known if key not in seen]
        for key in gone:
            del self._known[key]
        return [*written, *(Recorded(key, None) for key in gone)]

    def _judged(self, held: Held, window: float, now: float) -> Instance:
        instance = Instance(
            app=held.app,
            variant=held.variant,
            device=self._device,
            slice=held.slice,
            qps=held.rows / window if window > 0.0 else 0.0,
            peak=held.peak,
            slowdown=held.slowdown,
            expires=now + self._lease,
        )
        before = self._known.get(instance.key)
        state = instance_state(
            loaded=True,
            qps=instance.qps,
            peak=held.peak,
            latency=held.slowdown,
            profiled=1.0,
            before=before.state if before is not None else InstanceState.ACTIVE,
        )
        return replace(instance, state=state)


class InstanceIndex:
    """All instances, as their records say."""

    __slots__ = ("_instances",)

    def __init__(self) -> None:
        self._instances: dict[str, Instance] = {}

    def put(self, key: str, instance: Instance | None) -> None:
        """A record was read; None: it was ended."""
        if instance is None:
            self._instances.pop(key, None)
        else:
            self._instances[key] = instance

    def at(self, now: float) -> Sequence[Instance]:
        """Those whose records count, by key."""
        return [i for _, i in sorted(self._instances.items()) if i.expires > now]

    def on(self, device: str) -> Sequence[Instance]:
        """What was recorded of a worker, expired or not: what a replacement is to hold."""
        return [i for _, i in sorted(self._instances.items()) if i.device == device]

    def states(self, device: str, now: float) -> Mapping[str, InstanceState]:
        """State of each variant on a worker; of several slices that hold one, the last by name."""
        return {i.variant: i.state for i in self.at(now) if i.device == device}

    def expired(self, now: float, after: float) -> list[str]:
        """Keys of records that expired more than ``after`` seconds ago."""
        return [key for key, i in sorted(self._instances.items()) if i.expires < now - after]
