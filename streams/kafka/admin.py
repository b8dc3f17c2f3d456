"""Topics of an Apache Kafka: made, looked at, configured, deleted; and what groups have committed."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    KafkaConnectionError,
    KafkaError,
    TopicAlreadyExistsError,
    for_code,
)

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka.connection import close_what_it_begins_with, connection, unreachable
from sluicegate.streams.kafka.failover import Answer, answered, controller_answers
from sluicegate.streams.kafka.topic_configs import configs
from sluicegate.streams.kafka.topic_limits import Limits, default_replication, read_configs, read_limits
from sluicegate.streams.ports import BrokerError, TopicPartition, TopicSpec, TopicState
from sluicegate.streams.topics import check_topic_name


class KafkaAdmin:
    """Implements ``sluicegate.streams.ports.Admin``. Connects when first used."""

    def __init__(self, servers: str, settings: KafkaSettings, limits: Limits) -> None:
        self._servers = servers
        self._settings = settings
        self._limits = limits
        self._inner: Any = None
        self._connecting = asyncio.Lock()

    async def create_topics(self, topics: Iterable[TopicSpec]) -> None:
        """Create those that do not exist, and wait until they can be used."""
        wanted = {check_topic_name(spec.name): spec for spec in topics}
        existing = await self.topics()
        specs = [spec for name, spec in wanted.items() if name not in existing]
        if not specs:
            return
        inner = await self._client()
        replication = self._settings.replication or await default_replication(inner)
        missing = [self._new_topic(spec, replication) for spec in specs]

        async def create() -> Any:
            await controller_answers(inner)
            return await inner.create_topics(missing)

        response = await self._ask("topics cannot be created", create)
        for name, code, *rest in response.topic_errors:
            error = for_code(code)
            if code and error is not TopicAlreadyExistsError:
                raise _refused(f"topic {name!r} cannot be created", code, rest[0] if rest else None)
        await self._until_known({new.name for new in missing})

    async def partitions(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Partition count of each topic that exists."""
        names = set(topics)
        return {t["topic"]: len(t["partitions"]) for t in await self._described() if t["topic"] in names}

    async def topics(self) -> frozenset[str]:
        """Names of all topics but the broker's own."""
        return frozenset(t["topic"] for t in await self._described() if not t["topic"].startswith("__"))

    async def limits(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Bytes that a record of each topic that exists may have, where this client may ask."""
        known = await self.topics()
        found = await read_limits(await self._client(), (name for name in topics if name in known))
        self._limits.learn(found)
        return found

    async def committed(self, group: str, partition: TopicPartition) -> int | None:
        """Committed offset of any group."""
        inner = await self._client()

        async def ask() -> Mapping[Any, Any]:
            offsets: Mapping[Any, Any] = await inner.list_consumer_group_offsets(group, partitions=[partition])
            if not offsets:  # a partition without an offset is told as such: the client drops what went wrong
                raise GroupCoordinatorNotAvailableError("no offsets in the answer")
            return offsets

        offsets = await self._ask(f"what group {group} has committed cannot be read", ask)
        found = next((held.offset for held in offsets.values()), -1)
        return None if found < 0 else int(found)

    async def close(self) -> None:
        """Disconnect."""
        if self._inner is not None:
            await self._inner.close()
            self._inner = None

    async def states(self, topics: Iterable[str]) -> Mapping[str, TopicState]:
        """Those of ``topics`` that exist, as the broker has them."""
        wanted = set(topics)
        described = {t["topic"]: t["partitions"] for t in await self._described() if t["topic"] in wanted}
        found = await read_configs(await self._client(), described)
        return {
            name: TopicState(len(parts), min((len(p["replicas"]) for p in parts), default=0), found.get(name, {}))
            for name, parts in described.items()
        }

    async def configure(self, topic: str, values: Mapping[str, str]) -> None:
        """Set these of ``topic``; what else was set there stays. Raises BrokerError or ConfigurationError."""
        inner = await self._client()
        own = await read_configs(inner, [topic], own=True)
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {**own.get(topic, {}), **values})
        answers = await self._ask(f"{topic} cannot be configured", lambda: inner.alter_configs([resource]))
        for code, detail, *_ in (held for answer in answers for held in answer.resources):
            if code:
                raise _refused(f"topic {topic!r} cannot be configured", code, detail)

    async def delete(self, topics: Iterable[str]) -> None:
        """Delete these, with all that they hold, and wait until nothing can be written to them.

        Raises BrokerError or ConfigurationError.
        """
        inner = await self._client()
        names = sorted(topics)

        async def delete() -> Any:
            await controller_answers(inner)
            return await inner.delete_topics(names)

        answer = await self._ask("topics cannot be deleted", delete)
        until = asyncio.get_running_loop().time() + self._settings.request_timeout
        for name, code in answer.topic_error_codes:
            if code:
                raise _refused(f"topic {name!r} cannot be deleted", code, None)
        while left := await self.partitions(names):  # the controller answers before the brokers have heard of it
            if asyncio.get_running_loop().time() > until:
                raise BrokerError(f"topics {', '.join(sorted(left))} were deleted but are still there")
            await asyncio.sleep(0.05)

    def _new_topic(self, spec: TopicSpec, replication: int) -> Any:
        return NewTopic(
            spec.name, spec.partitions, spec.replication or replication, topic_configs=configs(spec, self._settings)
        )

    async def _until_known(self, names: set[str]) -> None:
        until = asyncio.get_running_loop().time() + self._settings.request_timeout
        while True:
            ready = {
                t["topic"]
                for t in await self._described()
                if not t["error_code"] and all(p["leader"] >= 0 for p in t["partitions"])
            }
            if names <= ready:
                return
            if asyncio.get_running_loop().time() > until:
                raise BrokerError(f"topics {', '.join(sorted(names - ready))} were created but have no leader")
            await asyncio.sleep(0.05)

    async def _described(self) -> list[dict[str, Any]]:
        inner = await self._client()
        described: list[dict[str, Any]] = await self._ask("topics cannot be listed", inner.describe_topics)
        return [t for t in described if not t["error_code"]]

    async def _ask(self, failure: str, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """What a broker answers that lives. Raises BrokerError, which says ``failure``."""
        inner = await self._client()
        try:
            return await answered(inner, ask, within=self._settings.request_timeout)
        except KafkaError as error:
            raise BrokerError(f"{self._servers}: {failure} ({error})") from error

    async def _client(self) -> Any:
        async with self._connecting:
            if self._inner is None:
                inner = AIOKafkaAdminClient(**connection(self._servers, self._settings))
                close_what_it_begins_with(inner._client)
                try:
                    await inner.start()
                except KafkaConnectionError as error:
                    await inner.close()
                    raise unreachable(self._servers, error) from error
                except BaseException:
                    await inner.close()
                    raise
                self._inner = inner
            return self._inner


def _refused(what: str, code: int, detail: str | None) -> BrokerError | ConfigurationError:
    error = for_code(code)
    return (BrokerError if error.retriable else ConfigurationError)(f"{what}: {detail or error.__name__}")
