"""What retention may have taken of topics: how old it was at least, where that is known.

Rules. Apache Kafka lets go by time of what is older than ``retention.ms``: what is younger cannot have been among it.
Where it lets go by size too (``retention.bytes``), where that cannot be read or explains nothing (records deleted by
hand, or of a topic that is compacted alone), all may be gone. The embedded broker says the same of itself: by size
where its cap on memory has taken some of a topic.
"""

from collections.abc import Iterable, Mapping
from math import inf

from sluicegate.streams.ports import Broker, TellsStates


async def gone_before(broker: Broker, topics: Iterable[str], now: float) -> Mapping[str, float]:
    """Topic -> a time that all was written before which it has let go of; infinite where there is none."""
    names = set(topics)
    admin = broker.admin()
    states = await admin.states(names) if names and isinstance(admin, TellsStates) else {}
    return {name: _gone_before(states[name].configs, now) if name in states else inf for name in names}


def _gone_before(configs: Mapping[str, str], now: float) -> float:
    kept_ms = int(configs.get("retention.ms", "-1"))
    by_size = configs.get("retention.bytes") != "-1"
    by_time = kept_ms >= 0 and "delete" in configs.get("cleanup.policy", "delete")
    return now - kept_ms / 1e3 if by_time and not by_size else inf
