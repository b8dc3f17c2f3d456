"""What a node of a local broker is configured as: alone, or one of several that keep copies of each other's records.

Every node is broker and controller in one process. Alone, it is its own quorum. Of several, all vote, a topic has three
copies, and a record is acknowledged once all copies that keep up have it, and no fewer than two. What waits for a node
that does not answer, waits for about as long as the controller does before it gives that node's partitions away.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
SESSION_S = 3.0
"""Seconds after which the controller takes a node for dead."""

_EACH = """\
process.roles=broker,controller
node.id={node}
listeners={listener}://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners={listener}://{host}:{told_port}
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
default.replication.factor={copies}
min.insync.replicas={least}
offsets.topic.replication.factor={copies}
offsets.topic.num.partitions=4
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={least}
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor={copies}
share.coordinator.state.topic.min.isr={least}
group.initial.rebalance.delay.ms=0
broker.heartbeat.interval.ms=500
broker.session.timeout.ms={session_ms:.0f}
group.min.session.timeout.ms=1000
log.cleaner.dedupe.buffer.size=16777216
log.index.size.max.bytes=2097152
"""

_ALONE = """\
controller.quorum.bootstrap.servers={host}:{controller_port}
"""

_OF_SEVERAL = """\
controller.quorum.voters={voters}
controller.socket.timeout.ms={session_ms:.0f}
replica.socket.timeout.ms={session_ms:.0f}
"""

LOGGING = """\
status=error
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=[%d] %p %m (%c)%n
rootLogger.level=info
rootLogger.appenderRef.console.ref=console
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePorts:
    """Where a node listens: for clients and other nodes, and for controllers."""

    clients: int
    controllers: int


def server_properties(
    node: int, ports: Mapping[int, NodePorts], told: Mapping[int, NodePorts], *, data: Path, listener: str
) -> str:
    """The file's text. ``ports``: of all nodes; ``told``: what others are told instead, where that differs."""
    copies = min(3, len(ports))
    values = {
        "host": HOST,
        "node": node,
        "listener": listener,
        "port": ports[node].clients,
        "controller_port": ports[node].controllers,
        "told_port": told[node].clients,
        "data": str(data).replace("\\", "\\\\"),
        "copies": copies,
        "least": max(1, copies - 1),
        "session_ms": 1e3 * SESSION_S,
        "voters": ",".join(f"{number}@{HOST}:{other.controllers}" for number, other in told.items()),
    }
    return (_EACH + (_ALONE if len(ports) == 1 else _OF_SEVERAL)).format(**values)
