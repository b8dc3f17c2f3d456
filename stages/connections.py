"""What every stage of a process is handed: the log, the clock, and what it is watched by."""

from dataclasses import dataclass, field

from sluicegate.domain.clock import Clock
from sluicegate.stages.telemetry.telemetry import Telemetry
from sluicegate.streams.objects.store import ObjectStore
from sluicegate.streams.ports import Broker, Producer
from sluicegate.streams.topics import Topics


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """Of one process; its stages share them."""

    broker: Broker
    producer: Producer
    topics: Topics
    clock: Clock
    telemetry: Telemetry = field(default_factory=Telemetry)
    objects: ObjectStore | None = None
