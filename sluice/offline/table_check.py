"""What running selection tables promised and what came of it, read from the control and metrics topics."""

from collections.abc import Iterable

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.table import SelectionTable, TableObserved
from sluicegate.planner.policy_tables.table_codec import decode
from sluicegate.sluice.audit.result_log import read_results
from sluicegate.streams.ports import Broker, TopicPartition
from sluicegate.streams.records import control
from sluicegate.streams.topics import Topics


async def published(broker: Broker, topics: Topics) -> dict[tuple[str, float], SelectionTable]:
    """(fingerprint, load) -> table, also of those withdrawn since, as far as the topic still has them."""
    found: dict[tuple[str, float], SelectionTable] = {}
    async for record in read_results(broker, [TopicPartition(topics.policies, 0)], follow=False):
        if record.value is not None:
            try:
                table = decode(record.value)
            except InvalidInputError:
                continue  # anybody can write there
            found[table.fingerprint, table.qps] = table
    return found


async def counted(
    broker: Broker, topics: Topics, *, after: float = 0.0, until: float = float("inf")
) -> tuple[TableObserved, ...]:
    """What workers told of each table in heartbeats ``after`` (exclusive) to ``until`` (inclusive), wall seconds."""
    sums: dict[tuple[str, str, float, str, float], TableObserved] = {}
    async for record in read_results(broker, [TopicPartition(topics.devices_metrics, 0)], follow=False):
        if record.value is None:
            continue
        try:
            beat = control.decode_heartbeat(record.value)
        except InvalidInputError:
            continue
        if after < beat.at <= until:
            _add(sums, beat.observed)
    return tuple(sums.values())


def _add(sums: dict[tuple[str, str, float, str, float], TableObserved], told: Iterable[TableObserved]) -> None:
    for o in told:
        key = (o.app, o.worker_class, o.slo, o.fingerprint, o.qps)
        known = sums.get(key)
        sums[key] = o if known is None else known.plus(o)
