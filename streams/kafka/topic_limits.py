"""What the broker says that its clients must know: how large a record of each topic may be, how often it is copied."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, for_code
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka.failover import answered
from sluicegate.streams.kafka.fetched_batches import MAX_UNPACKED
from sluicegate.streams.ports import Headers

log = logging.getLogger(__name__)

UNLIMITED = 1 << 30
"""What clients are told, in bytes: the limits here are the ones that count."""

_KEY = "max.message.bytes"
_COPIES = "default.replication.factor"
_OF_THE_TOPIC = 1
"""Where a setting comes from, as the protocol numbers it."""
_BATCH_HEAD = 61
_HEADERS = 64 << 10
_PATIENCE = 10.0
"""Seconds for which a question is asked again where a broker is gone."""


class Limits:
    """Of one broker's clients. Topics that were not looked up have the settings' limit."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._known: dict[str, int] = {}

    def learn(self, found: Mapping[str, int]) -> None:
        """These topics say so."""
        self._known.update(found)

    def of(self, topic: str) -> int:
        """Bytes of a record. What is compressed is the broker's to judge, within what readers unpack."""
        if self._settings.compression is not None:
            return MAX_UNPACKED - _HEADERS
        return self._known.get(topic, self._settings.max_message_bytes)

    def refused(self, topic: str, size: int) -> None:
        """The broker does not take a record of ``size`` bytes there: others of that size need not be sent."""
        self._known[topic] = min(self.of(topic), size - 1)

    @property
    def batch_bytes(self) -> int:
        """How large batches may get: no larger than any topic takes."""
        return max(1024, min([self._settings.batch_bytes, *(limit - _BATCH_HEAD for limit in self._known.values())]))

    def excess(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers) -> str | None:
        """What to tell of a record that is too large; None for one that is not."""
        limit = self.of(topic)
        size = (0 if value is None else len(value)) + (0 if key is None else len(key))
        if size + _HEADERS > limit:
            size = size_of(key, value, headers)
        if size <= limit:
            return None
        return f"{size} bytes, but topic {topic} takes {limit} at most; send less at once"


def size_of(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Bytes of a record that is a batch of its own, not compressed."""
    return _BATCH_HEAD + int(DefaultRecordBatchBuilder.estimate_size_in_bytes(key, value, list(headers)))


def not_taken(topic: str, why: str) -> str:
    """What to tell of a record that the broker refuses for something else than its size."""
    remedy = "give it a key where the topic is compacted, and a timestamp that the topic allows"
    return f"topic {topic} does not take it ({why}); {remedy}"


async def read_limits(admin: Any, topics: Iterable[str]) -> dict[str, int]:
    """What the topics say, of those that may be asked. ``admin``: a started client."""
    found = await read_configs(admin, topics, only=_KEY)
    return {name: int(values[_KEY]) for name, values in found.items() if _KEY in values}


async def read_configs(
    admin: Any, topics: Iterable[str], *, only: str | None = None, own: bool = False
) -> dict[str, dict[str, str]]:
    """Settings of those topics that may be asked: all that count there, ``only`` one, or their ``own`` alone."""
    names = None if only is None else {only: None}
    wanted = [ConfigResource(ConfigResourceType.TOPIC, name, names) for name in sorted(set(topics))]
    if not wanted:
        return {}
    try:
        answers = await answered(admin, lambda: admin.describe_configs(wanted), within=_PATIENCE)
    except KafkaError as error:
        log.warning("the topics' %s cannot be read (%s)", only or "settings", error)
        return {}
    found: dict[str, dict[str, str]] = {}
    refused: dict[str, str] = {}
    for code, _, _, name, entries in (resource for answer in answers for resource in answer.resources):
        if code:
            refused[name] = for_code(code).__name__
            continue
        found[name] = {
            key: value
            for key, value, _read_only, source, *_ in entries
            if value is not None and (not own or source == _OF_THE_TOPIC)
        }
    if refused:
        why = ", ".join(sorted(set(refused.values())))
        told = only or "settings"
        log.warning("%s cannot be read of %d topics, %s among them (%s)", told, len(refused), min(refused), why)
    return found


async def default_replication(admin: Any) -> int:
    """Copies of topics for which nobody says how many; 1 where that may not be asked."""

    def ask() -> Any:
        broker = admin._client.get_random_node()
        return admin.describe_configs([ConfigResource(ConfigResourceType.BROKER, broker, {_COPIES: None})])

    try:
        answers = await answered(admin, ask, within=_PATIENCE)
    except KafkaError as error:
        log.warning("the broker's %s cannot be read (%s): topics are created with one copy", _COPIES, error)
        return 1
    for code, _, _, _, entries in (resource for answer in answers for resource in answer.resources):
        for key, value, *_ in () if code else entries:
            if key == _COPIES:
                return int(value)
        log.warning("the broker's %s cannot be read (%s): topics are created with one copy", _COPIES, for_code(code))
    return 1
