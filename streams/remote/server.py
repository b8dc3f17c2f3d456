"""Serving a memory log to other processes of this machine, over HTTP on loopback.

Rules. What is asked is checked and bounded: bytes of a call, records and bytes of an answer, seconds of a wait. Where
no token is set, only calls to a loopback name are answered, so that no web page can reach the log through a name of
its own; with a token every call must carry it. Clients: ``sluicegate.streams.remote.broker``.
"""

import asyncio
import hmac
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from sluicegate.domain.errors import ConfigurationError, InvalidInputError, SluiceError
from sluicegate.streams.ports import (
    Broker,
    Consumer,
    Producer,
    Record,
    TellsStates,
    TopicPartition,
    TopicSpec,
    Written,
)
from sluicegate.streams.records.bounds import LAST_TIME
from sluicegate.streams.remote.frames import (
    CALL_HEADER,
    FRAME_TYPE,
    MAX_ANSWER_BYTES,
    MAX_CALL_BYTES,
    MAX_RECORDS,
    MAX_WAIT,
    decode_frame,
    decode_partitions,
    encode_frame,
)
from sluicegate.streams.remote.http_bodies import BodyError, read_body
from sluicegate.streams.remote.identity import identity

Handler = Callable[[web.Request], Awaitable[web.Response]]
_MAX_SECONDS = 10.0
"""That a call's body may take."""
_LOOPBACK = {"127.0.0.1", "localhost", "::1", "[::1]"}


def routes(broker: Broker, *, token: str | None = None, home: Path | None = None) -> list[web.RouteDef]:
    """Routes below ``/log`` that serve ``broker``. ``token``: asked of every call, where given. ``home``: the folder
    that its workers read models from, told to who registers."""
    service = _Service(broker, home)

    def guarded(handler: Handler) -> Handler:
        async def answer(request: web.Request) -> web.Response:
            return _refusal(request, token) or await _answer(handler, request)

        return answer

    return [
        web.get("/log/home", guarded(service.home)),
        web.get("/log/topics", guarded(service.topics)),
        web.post("/log/topics", guarded(service.create)),
        web.post("/log/produce", guarded(service.produce)),
        web.post("/log/fetch", guarded(service.fetch)),
        web.post("/log/offsets", guarded(service.offsets)),
        web.post("/log/committed", guarded(service.committed)),
    ]


class _Service:
    def __init__(self, broker: Broker, home: Path | None) -> None:
        self._broker = broker
        self._home = home
        self._producer: Producer | None = None

    async def home(self, request: web.Request) -> web.Response:
        del request
        return _json({} if self._home is None else {"home": str(self._home), "folder": identity(self._home)})

    async def topics(self, request: web.Request) -> web.Response:
        del request
        admin = self._broker.admin()
        names = await admin.topics()
        told = await admin.states(names) if isinstance(admin, TellsStates) else {}
        configs = {name: state.configs for name, state in told.items()}
        return _json({"topics": dict(await admin.partitions(names)), "configs": configs})

    async def create(self, request: web.Request) -> web.Response:
        body = await _body(request)
        listed = body.get("topics")
        if not isinstance(listed, list):
            raise InvalidInputError("topics", "give a list of topics")
        await self._broker.admin().create_topics([_spec(entry) for entry in listed])
        return _json({})

    async def produce(self, request: web.Request) -> web.Response:
        _, blocks = decode_frame(await _read(request))
        if self._producer is None:
            self._producer = self._broker.producer()
            await self._producer.start()
        fates = [
            await self._send(self._producer, topic, partition, record)
            for topic, partition, records in blocks
            for record in records
        ]
        return _json({"written": fates})

    async def _send(self, producer: Producer, topic: str, partition: int, record: Record) -> Any:
        at = record.timestamp if math.isfinite(record.timestamp) else None
        try:
            if at is not None and not 0.0 <= at <= LAST_TIME:
                raise InvalidInputError("timestamp", f"is {at:g}; give seconds since the epoch, up to the year 9999")
            written: Written = await (
                await producer.send(
                    topic,
                    record.value,
                    key=record.key,
                    headers=record.headers,
                    partition=None if partition < 0 else partition,
                    timestamp=at,
                )
            )
        except (InvalidInputError, ConfigurationError) as error:
            return _told(error)
        return [written.partition, written.offset]

    async def fetch(self, request: web.Request) -> web.Response:
        body = await _body(request)
        positions = {tp: int(at or 0) for tp, at in decode_partitions("positions", body.get("positions"))}
        if not positions:
            raise InvalidInputError("positions", "give at least one partition")
        consumer = self._broker.consumer(partitions=list(positions), start_at="beginning")
        try:
            await consumer.start()
            for tp, at in positions.items():
                await consumer.seek(tp, at)
            wait = _bounded(body, "wait", MAX_WAIT)
            limit = max(1, int(_bounded(body, "max_records", MAX_RECORDS)))
            records, cut = _fitting(await consumer.get_many(wait=wait, max_records=limit))
            following = await _following(consumer, positions, records, cut=cut)
        finally:
            await consumer.stop()
        by_partition: dict[TopicPartition, list[Record]] = {}
        for record in records:
            by_partition.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        frame = encode_frame(
            {"positions": [(*tp, at) for tp, at in following.items()]},
            [(*tp, held) for tp, held in by_partition.items()],
        )
        return web.Response(body=frame, content_type=FRAME_TYPE)

    async def offsets(self, request: web.Request) -> web.Response:
        body = await _body(request)
        asked = dict(decode_partitions("partitions", body.get("partitions")))
        if not asked:
            return _json({"beginning": [], "end": [], "at": []})
        consumer = self._broker.consumer(partitions=list(asked), start_at="beginning")
        try:
            await consumer.start()
            beginning = await consumer.beginning_offsets(asked)
            end = await consumer.end_offsets(asked)
            times = await consumer.offsets_for_times({tp: at for tp, at in asked.items() if at is not None})
        finally:
            await consumer.stop()
        return _json(
            {
                "beginning": [beginning[tp] for tp in asked],
                "end": [end[tp] for tp in asked],
                "at": [times.get(tp) for tp in asked],
            }
        )

    async def committed(self, request: web.Request) -> web.Response:
        body = await _body(request)
        group = body.get("group")
        if not isinstance(group, str):
            raise InvalidInputError("group", "give the name of a group")
        asked = [tp for tp, _ in decode_partitions("partitions", body.get("partitions"))]
        admin = self._broker.admin()
        return _json({"offsets": [await admin.committed(group, tp) for tp in asked]})


def _refusal(request: web.Request, token: str | None) -> web.Response | None:
    if CALL_HEADER not in request.headers:
        return _json({"error": "configuration", "problem": f"the header {CALL_HEADER} is missing"}, 403)
    if token is not None:
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), f"Bearer {token}".encode()):
            return _json({"error": "configuration", "problem": "the token is missing or wrong; give it"}, 401)
    elif _host(request) not in _LOOPBACK:
        return _json({"error": "configuration", "problem": "this log is served on loopback only"}, 403)
    return None


def _host(request: web.Request) -> str:
    try:
        return request.url.host or ""
    except ValueError:
        return ""


async def _answer(handler: Handler, request: web.Request) -> web.Response:
    try:
        return await handler(request)
    except BodyError as error:
        refused = _json({"error": "input", "field": "body", "problem": error.problem}, error.status)
        refused.force_close()
        return refused
    except SluiceError as error:
        return _json(_told(error), 400)


def _told(error: SluiceError) -> dict[str, str]:
    if isinstance(error, InvalidInputError):
        return {"error": "input", "field": error.field, "problem": error.problem}
    return {"error": "configuration", "problem": str(error)}


async def _read(request: web.Request) -> bytes:
    return await read_body(request, MAX_CALL_BYTES, _MAX_SECONDS)


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = orjson.loads(await _read(request))
    except ValueError as error:
        raise InvalidInputError("body", f"is not JSON ({error!s:.80})") from error
    if not isinstance(body, dict):
        raise InvalidInputError("body", "give a JSON object")
    return body


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


def _bounded(body: Mapping[str, Any], name: str, most: float) -> float:
    value = body.get(name, 0)
    if type(value) not in (int, float) or not value >= 0:
        raise InvalidInputError(name, f"is {value!r:.40}; give a number from 0 on")
    return min(float(value), most)


def _spec(entry: Any) -> TopicSpec:
    number = (int, float)
    optional = {
        "retention_s": number,
        "max_message_bytes": int,
        "segment_s": number,
        "compaction_lag_s": number,
        "replication": int,
        "min_insync_replicas": int,
        "compression": str,
    }
    kinds = {"name": str, "partitions": int, "compacted": bool, "broker_time": bool, **optional}
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise InvalidInputError("topics", f"{entry!r:.60}: give an object with a name")
    for name, value in entry.items():
        known = kinds.get(name)
        if known is None or not (isinstance(value, known) or (value is None and name in optional)):  # type: ignore[arg-type]
            raise InvalidInputError(f"topics.{name!s:.40}", f"is {value!r:.40}; that is no setting of a topic")
    return TopicSpec(**entry)


def _fitting(records: Sequence[Record]) -> tuple[list[Record], bool]:
    """As many records as an answer may hold, at least one; and whether some did not fit."""
    size = 0
    for index, record in enumerate(records):
        size += len(record.value or b"") + sum(len(held) for _, held in record.headers) + 256
        if size > MAX_ANSWER_BYTES and index:
            return list(records[:index]), True
    return list(records), False


async def _following(
    consumer: Consumer, positions: Mapping[TopicPartition, int], records: Sequence[Record], *, cut: bool
) -> dict[TopicPartition, int]:
    """Where the reader goes on."""
    if not cut:
        return dict(zip(positions, await asyncio.gather(*(consumer.position(tp) for tp in positions)), strict=True))
    last = dict(positions)
    for record in records:
        last[TopicPartition(record.topic, record.partition)] = record.offset + 1
    return last
