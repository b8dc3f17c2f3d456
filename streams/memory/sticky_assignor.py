"""Which member of a group reads which partition. Pure, deterministic, sticky: what need not move stays."""

from collections.abc import Mapping

from sluicegate.streams.ports import TopicPartition

Members = Mapping[str, frozenset[str]]
"""Member id -> the topics it subscribes to."""


def assign(
    members: Members,
    partitions: Mapping[str, int],
    previous: Mapping[str, frozenset[TopicPartition]],
    *,
    exclusive: bool = False,
) -> dict[str, frozenset[TopicPartition]]:
    """Share out the partitions of all subscribed topics, each to one member that subscribes to its topic.

    ``partitions``: topic -> count. ``previous``: what members held. A member keeps what it held up to its fair share
    (total / members, rounded up for as many members as needed); the rest goes to whoever has least, ties by member id.
    ``exclusive``: one member gets everything, whoever held most, ties by member id.
    """
    if exclusive and members:
        only = min(members, key=lambda m: (-len(previous.get(m, ())), m))
        shared = assign({only: members[only]}, partitions, {})
        return {m: shared.get(m, frozenset()) for m in members}
    everything = sorted(
        TopicPartition(topic, p) for topic in set().union(*members.values()) for p in range(partitions.get(topic, 0))
    )
    share, extra = divmod(len(everything), len(members) or 1)
    order = sorted(members, key=lambda m: (-len(previous.get(m, ())), m))
    given: dict[str, set[TopicPartition]] = {m: set() for m in members}
    free = set(everything)
    for member in order:
        limit = share + (1 if extra > 0 else 0)
        held = [tp for tp in sorted(previous.get(member, ())) if tp in free and tp.topic in members[member]]
        given[member].update(held[:limit])
        free.difference_update(given[member])
        if len(given[member]) > share:
            extra -= 1
    for tp in sorted(free):
        willing = [m for m in members if tp.topic in members[m]]
        if willing:
            given[min(willing, key=lambda m: (len(given[m]), m))].add(tp)
    return {m: frozenset(tps) for m, tps in given.items()}
