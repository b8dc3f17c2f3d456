"""What every stage of a process is handed: the log, the clock, and what it is watched by."""

from dataclasses import dataclass, field

from domain.clock import Clock
from stages.telemetry import Telemetry
from streams.ports import Broker, Producer
from streams.topics import Topics


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """Of one process; its stages share them."""

    broker: Broker
    producer: Producer
    topics: Topics
    clock: Clock
    telemetry: Telemetry = field(default_factory=Telemetry)
