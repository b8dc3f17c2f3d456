"""The gRPC front: Open Inference Protocol v2, the same queries, limits and errors as the HTTP front's.

Rules.
- A request over the limit of bytes is refused before it is read whole, and one that waits beyond the limit of waiting
  requests at once (RESOURCE_EXHAUSTED, UNAVAILABLE); ``rate`` and ``burst`` count each request of an address, those of
  a stream too. With a token, each call must carry the metadata ``authorization: Bearer <token>``, a stream as it
  begins; health needs none.
- A call that is refused for now (429, 503 over HTTP) ends with the trailing metadata ``retry-after``, whole seconds;
  a stream's request that is refused so has its ``error_message`` alone.
- Connections, calls and streams that say nothing are ended (``sluicegate.stages.fronts.grpc_limits``).
- A stream's requests are asked as they come, at most ``_IN_FLIGHT`` of them at a time, and answered in their order;
  what goes wrong with one is its ``error_message`` alone.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.connections import Connections
from sluicegate.stages.fronts.front_desk import MOST_WAITING, FrontDesk
from sluicegate.stages.fronts.front_error import FrontError
from sluicegate.stages.fronts.grpc_limits import Requests, Rooms, server_options
from sluicegate.stages.fronts.grpc_messages import DATA_TYPES, MESSAGES, SERVICE
from sluicegate.stages.fronts.grpc_tensors import body_of, response_of, wanted_of
from sluicegate.stages.fronts.http_auth import Access, RateLimit, netloc
from sluicegate.stages.fronts.oip_responses import SERVER
from sluicegate.stages.runtime.background_tasks import beside
from sluicegate.streams.records import codec

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    502: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_HEALTH = frozenset({"ServerLive", "ServerReady"})
_IN_FLIGHT = 256
"""Requests of one stream that are asked at a time."""
_GRACE = 1.0
"""Seconds that calls have to end once the front stops."""

Answering = Callable[[Any], Awaitable[Any]]
Called = Callable[[Any, Any], Awaitable[Any]]


class GrpcStage:
    """Serves what ``desk`` has, where and for whom ``access`` says."""

    name = "grpc"

    def __init__(self, connections: Connections, desk: FrontDesk, *, access: Access) -> None:
        self._desk = desk
        self._access = access
        self._clock = connections.clock
        self._limit = None if access.rate is None else RateLimit(access.rate, access.burst)
        self._requests = Requests(access)
        self._rooms = Rooms(access)
        self._meters = connections.telemetry.meters
        self._meters.read("sluice_http_waiting_requests", lambda: [((self.name,), float(desk.waiting))])
        self.bound = asyncio.Event()
        self.address = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``; what waits then gets its outcome within a bound, else UNAVAILABLE, as does what comes.
        Raises ConfigurationError where the port is taken."""
        await self._desk.open()
        server = self._server()
        try:
            port = self._bind(server)
            async with beside([self._desk.listen(), self._desk.failure(), self._rooms.keep(port)]):
                self.address = netloc(self._access.host, port)
                await server.start()
                self.bound.set()
                await stop.wait()
                await self._desk.finish()
        finally:
            self._desk.give_up()
            await server.stop(_GRACE)
            await self._desk.close()

    async def registered(self, served: Catalogue) -> None:
        """These apps, and no others, are served from now on."""
        await self._desk.registered(served)

    def _bind(self, server: Any) -> int:
        where = netloc(self._access.host, self._access.port)
        try:
            port = server.add_insecure_port(where)
        except RuntimeError:
            port = 0
        if not port:
            raise ConfigurationError(f"grpc {where}: cannot be listened on; set SLUICE_GRPC__PORT (0: any)")
        return int(port)

    def _server(self) -> Any:
        server = grpc.aio.server(
            options=server_options(self._access, self._desk.max_body_bytes), maximum_concurrent_rpcs=MOST_WAITING
        )
        unary: dict[str, Answering] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ServerMetadata": self._server_metadata,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "RepositoryIndex": self._index,
        }
        handlers = {name: _handler(name, self._guarded(name, _of_request(answer))) for name, answer in unary.items()}
        handlers["ModelInfer"] = _handler("ModelInfer", self._guarded("ModelInfer", self._infer))
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._stream,
            request_deserializer=_reader("ModelInfer"),
            response_serializer=MESSAGES["ModelStreamInferResponse"].SerializeToString,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        return server

    def _guarded(self, name: str, answer: Called) -> Called:
        async def guarded(coming: AsyncIterator[Any], context: Any) -> Any:
            try:
                self._check(context, needs_token=name not in _HEALTH)
                request = _read(name, await self._requests.of_call(coming, _address(context.peer())))
                with self._rooms.asked(context.peer()):
                    answered = await answer(request, context)
            except FrontError as error:
                await self._refuse(context, error)
            self._count(200)
            return answered

        return guarded

    def _check(self, context: Any, *, needs_token: bool = True) -> str:
        """Who calls, by name, "" where that is not told. Raises FrontError where whoever calls may not."""
        if self._limit is not None:
            wait = self._limit.wait_for(_address(context.peer()), self._clock.monotonic())
            if wait > 0.0:
                raise FrontError(429, f"too many requests; try again in {wait:.2f} s", retry_s=wait)
        return self._who(context) if needs_token else ""

    def _who(self, context: Any) -> str:
        """Who calls, by name, "" where that is not told. Raises FrontError where the token is missing or wrong."""
        given = dict(context.invocation_metadata() or ()).get("authorization", "")
        client = self._access.tokens.client_of(str(given).encode(), answers=True)
        if client is None:
            raise FrontError(401, "give the token of this server as metadata 'authorization: Bearer …'")
        return client

    async def _refuse(self, context: Any, error: FrontError) -> None:
        """End a call; raises what ends it."""
        self._count(error.status)
        trailing = () if error.retry_after is None else (("retry-after", error.retry_after),)
        await context.abort(_CODES[error.status], error.why, trailing)

    def _count(self, status: int) -> None:
        self._meters.add("sluice_http_requests", self.name, str(status))

    async def _live(self, request: Any) -> Any:
        del request
        return MESSAGES["ServerLiveResponse"](live=True)

    async def _ready(self, request: Any) -> Any:
        del request
        return MESSAGES["ServerReadyResponse"](ready=self._desk.ready)

    async def _server_metadata(self, request: Any) -> Any:
        del request
        return MESSAGES["ServerMetadataResponse"](**SERVER)

    async def _model_ready(self, request: Any) -> Any:
        try:
            await self._desk.app_of(request.name, request.version or None)
        except FrontError:
            return MESSAGES["ModelReadyResponse"](ready=False)
        return MESSAGES["ModelReadyResponse"](ready=self._desk.ready)

    async def _model_metadata(self, request: Any) -> Any:
        told = self._desk.metadata(await self._desk.app_of(request.name, request.version or None))
        return MESSAGES["ModelMetadataResponse"](**told)

    async def _model_config(self, request: Any) -> Any:
        told = self._desk.config(await self._desk.app_of(request.name, request.version or None))
        for side in ("input", "output"):
            numbered = [(t, DATA_TYPES.index(t["data_type"].removeprefix("TYPE_"))) for t in told[side]]
            told[side] = [{**tensor, "data_type": number} for tensor, number in numbered]
        return MESSAGES["ModelConfigResponse"](config=told)

    async def _index(self, request: Any) -> Any:
        del request
        models = [{"name": app, "version": version, "state": "READY"} for app, version in self._desk.index()]
        return MESSAGES["RepositoryIndexResponse"](models=models)

    async def _infer(self, request: Any, context: Any) -> Any:
        given = dict(context.invocation_metadata() or ()).get("authorization", "")
        name = self._access.tokens.client_of(str(given).encode(), answers=True) or ""
        client = self._desk.client_of(_address(context.peer()), name)
        app = await self._desk.app_of(request.model_name, request.model_version or None)
        self._desk.check_room(app, client)
        try:
            body, json_length = body_of(request)
            wanted = wanted_of(request, app)
            given = context.invocation_metadata() or ()
            carried = codec.along((name, held) for name, held in given if isinstance(held, str))
        except InvalidInputError as error:
            raise FrontError(400, str(error)) from error
        if len(body) > self._desk.max_body_bytes:
            most = f"at most {self._desk.max_body_bytes} (admission.max_body_bytes) are taken"
            raise FrontError(413, f"body: {len(body)} bytes; {most}")
        result = await self._desk.ask(app, body, json_length, (*carried, codec.TAKES_RAW), client)
        try:
            return response_of(result, request.id, wanted)
        except InvalidInputError as error:
            raise FrontError(502, f"query {result.outcome.query_id} was answered, but its {error}") from error

    async def _stream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        asked: deque[asyncio.Task[Any]] = deque()
        ended, came, room = asyncio.Event(), asyncio.Event(), asyncio.Semaphore(_IN_FLIGHT)

        async def read() -> None:
            try:
                self._who(context)
                coming = self._requests.of_stream(requests, _address(context.peer()), lambda: bool(asked))
                async with aclosing(coming):
                    async for request in coming:
                        await room.acquire()
                        asked.append(asyncio.create_task(self._streamed(request, context)))
                        came.set()
            finally:
                ended.set()
                came.set()

        reading = asyncio.create_task(read())
        try:
            while not ended.is_set() or asked:
                if not asked:
                    came.clear()
                    await came.wait()
                    continue
                yield await asked[0]
                asked.popleft()
                room.release()
            await reading
        except FrontError as error:
            await self._refuse(context, error)
        finally:
            reading.cancel()
            for task in asked:
                task.cancel()
            await asyncio.gather(reading, *asked, return_exceptions=True)

    async def _streamed(self, request: Any, context: Any) -> Any:
        response = MESSAGES["ModelStreamInferResponse"]
        try:
            self._check(context)
            with self._rooms.asked(context.peer()):
                answered = await self._infer(_read("ModelInfer", request), context)
        except FrontError as error:
            self._count(error.status)
            asked = {} if request is None else {"model_name": request.model_name, "id": request.id}
            return response(error_message=error.why, infer_response=MESSAGES["ModelInferResponse"](**asked))
        self._count(200)
        return response(infer_response=answered)


def _of_request(answer: Answering) -> Called:
    """It does not matter who asks."""
    return lambda request, _context: answer(request)


def _handler(name: str, answer: Callable[[Any, Any], Awaitable[Any]]) -> Any:
    """A call with one request and one answer: its request is waited for by us, who know for how long."""
    return grpc.stream_unary_rpc_method_handler(
        answer,
        request_deserializer=_reader(name),
        response_serializer=MESSAGES[f"{name}Response"].SerializeToString,
    )


def _reader(name: str) -> Callable[[bytes], Any]:
    """Reads requests of a call; None stands for what is none: gRPC would end the call for it by a traceback."""
    kind = MESSAGES[f"{name}Request"]

    def read(content: bytes) -> Any:
        try:
            return kind.FromString(content)
        except DecodeError:
            return None

    return read


def _read(name: str, request: Any) -> Any:
    """Raises FrontError where ``request`` could not be read."""
    if request is None:
        raise FrontError(400, f"request: cannot be read; give a {name}Request of the Open Inference Protocol v2")
    return request


def _address(peer: str) -> str:
    """Of "ipv4:127.0.0.1:4711" and "ipv6:%5B::1%5D:4711" the address alone."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")
