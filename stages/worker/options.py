"""What a worker is given: what was set of it, and what it speaks through."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sluicegate.domain.clock import Clock
from sluicegate.domain.models.app import App
from sluicegate.stages.runtime.exactly_once import ExactlyOnce
from sluicegate.stages.telemetry.telemetry import Telemetry
from sluicegate.streams.objects.store import ObjectStore
from sluicegate.streams.ports import Broker, Producer
from sluicegate.streams.topics import Topics


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Seconds, and records in flight. ``policy``: the name of the batching rule.

    ``promised``: apps with a promise; it may change. ``first_cut``: of a GPU without instances. ``tables``, ``turns``:
    whether those topics are followed.
    """

    policy: str
    heartbeat: float = 0.5
    drain_s: float = 5.0
    max_in_flight: int = 4000
    promised: Mapping[str, App] = field(default_factory=dict)
    first_cut: tuple[str, ...] = ()
    tables: bool = False
    turns: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPorts:
    """What a worker speaks through. ``new_incarnation`` names a start; ``exactly_once``: of a consumer group."""

    broker: Broker
    producer: Producer
    topics: Topics
    clock: Clock
    new_incarnation: Callable[[], str]
    exactly_once: Callable[[str], ExactlyOnce] | None = None
    telemetry: Telemetry = field(default_factory=Telemetry)
    objects: ObjectStore | None = None
