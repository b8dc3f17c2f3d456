"""Who holds connections and calls half open to the gRPC front: innocents are answered meanwhile."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.harness import PATIENCE_S, PIXELS
from tests.outside.fronts import Front, all_closed, front, received

grpc = pytest.importorskip("grpc", reason="no gRPC: pip install 'sluicegate[grpc]'")
from sluicegate.stages.fronts.grpc_messages import MESSAGES  # noqa: E402 - needs what may not be installed

SERVICE = "/inference.GRPCInferenceService/"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS = 0, 1, 3, 4


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def call(method: str, stream: int) -> bytes:
    """The head of a call, as HPACK without its tables."""
    told = {
        ":method": "POST",
        ":scheme": "http",
        ":path": SERVICE + method,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    packed = (bytes((0, len(n))) + n.encode() + bytes((len(v),)) + v.encode() for n, v in told.items())
    return frame(HEADERS, b"".join(packed), flags=4, stream=stream)


BEGUN = PREFACE + frame(SETTINGS)
HALVES = (
    b"",
    PREFACE[:10],
    PREFACE,
    BEGUN,
    BEGUN + call("ModelInfer", 1)[:20],
    BEGUN + call("ModelInfer", 1),
    BEGUN + call("ModelInfer", 1) + frame(DATA, struct.pack(">BI", 0, 500) + b"x" * 9, stream=1),
    BEGUN + call("ServerLive", 1) + call("ModelStreamInfer", 3),
)
"""What each connection says before it says no more."""


@contextmanager
def channel(server: Front) -> Iterator[Any]:
    """A new connection."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}", options) as made:
        yield made


def answered(server: Front, within: float = 20.0) -> bool:
    """Whether an honest query on a connection of its own is."""
    tensor = {"name": "image", "datatype": "FP32", "shape": [1, PIXELS], "contents": {"fp32_contents": [0.0] * PIXELS}}
    request = MESSAGES["ModelInferRequest"](model_name="toy", inputs=[tensor])
    request.parameters["latency_ms"].int64_param = 9000
    with channel(server) as to:
        ask = to.unary_unary(
            f"{SERVICE}ModelInfer",
            request_serializer=MESSAGES["ModelInferRequest"].SerializeToString,
            response_deserializer=MESSAGES["ModelInferResponse"].FromString,
        )
        try:
            return bool(ask(request, timeout=within).outputs)
        except grpc.RpcError:
            return False


def eventually(server: Front) -> None:
    end = time.monotonic() + PATIENCE_S
    while not answered(server):
        assert time.monotonic() < end, server.said()


def halves(server: Front, stack: ExitStack, count: int) -> list[socket.socket]:
    made = []
    for number in range(count):
        sock = stack.enter_context(server.connect(server.grpc))
        sock.sendall(HALVES[number % len(HALVES)])
        made.append(sock)
    return made


def test_a_thousand_half_open_connections_cost_innocents_nothing_and_are_closed(
    tmp_path: Path, measured: Callable[[str, str], None]
) -> None:
    with front(tmp_path, by_grpc=True, idle_s=4.0, body_s=3.0) as server, ExitStack() as stack:
        eventually(server)
        before = server.descriptors()
        socks = halves(server, stack, 1000)
        assert [answered(server) for _ in range(10)] == [True] * 10
        assert server.ask() == 200
        assert server.descriptors() <= before + 1024 + 32
        all_closed(socks, within=PATIENCE_S)
        assert answered(server)
        assert "Traceback" not in server.said()
        assert len(server.said().splitlines()) <= 5, server.said()
        cost = server.cost()
        measured("1,000 half-open gRPC connections", f"11 of 11 served; {cost}; {server.audited()}")


def test_who_has_no_room_is_closed_and_there_is_room_again_once_the_others_are(tmp_path: Path) -> None:
    with front(tmp_path, by_grpc=True, connections=20, idle_s=6.0) as server, ExitStack() as stack:
        socks = halves(server, stack, 60)
        assert sum(received(sock, PATIENCE_S) == b"" for sock in socks[30:]) >= 25  # at once, without a word
        eventually(server)


@pytest.mark.parametrize("half", [BEGUN, BEGUN + call("ModelInfer", 1), BEGUN + call("ModelStreamInfer", 1)])
def test_who_asks_nothing_makes_room_and_who_asks_is_kept(tmp_path: Path, half: bytes) -> None:
    with front(tmp_path, by_grpc=True, connections=24, idle_s=120.0, body_s=120.0) as server, ExitStack() as stack:
        eventually(server)
        with channel(server) as kept:
            live = kept.unary_unary(
                f"{SERVICE}ServerLive",
                request_serializer=MESSAGES["ServerLiveRequest"].SerializeToString,
                response_deserializer=MESSAGES["ServerLiveResponse"].FromString,
            )
            assert live(MESSAGES["ServerLiveRequest"]()).live
            began = time.monotonic()
            for _ in range(40):
                stack.enter_context(server.connect(server.grpc)).sendall(half)
            while not answered(server, within=1.0):
                assert live(MESSAGES["ServerLiveRequest"](), wait_for_ready=False).live
                assert time.monotonic() < began + 60.0, "half of what those that ask nothing may take"


def reset_without_end(server: Front, stop: threading.Event) -> None:
    """Calls, each given up as soon as it has begun, as fast as they are taken."""
    while not stop.is_set():
        with suppress(OSError), server.connect(server.grpc) as sock:
            sock.settimeout(5.0)
            sock.sendall(BEGUN)
            for first in range(1, 1 << 30, 200):
                numbers = range(first, first + 200, 2)
                given_up = struct.pack(">I", 8)
                sock.sendall(b"".join(call("ModelInfer", n) + frame(RESET, given_up, stream=n) for n in numbers))
                with suppress(BlockingIOError):
                    while sock.recv(65536, socket.MSG_DONTWAIT):
                        pass
                if stop.is_set():
                    return


def test_calls_that_are_given_up_as_soon_as_they_begin_take_nobodys_place(
    tmp_path: Path, measured: Callable[[str, str], None]
) -> None:
    with front(tmp_path, by_grpc=True) as server:
        eventually(server)
        stop = threading.Event()
        floods = [threading.Thread(target=reset_without_end, args=(server, stop)) for _ in range(4)]
        for one in floods:
            one.start()
        time.sleep(1.0)
        served = [answered(server) for _ in range(10)]
        stop.set()
        for one in floods:
            one.join()
        assert served.count(True) >= 9, served  # the flood takes processor time
        cost = server.cost()
        measured("gRPC calls begun and given up without end", f"{served.count(True)} of 10 served; {cost}")
        assert answered(server)


def end_of_answer(sock: socket.socket) -> bytes:
    """The frame of heads, of those that come, that tells a status."""
    sock.settimeout(PATIENCE_S)
    with sock.makefile("rb") as frames:
        while len(head := frames.read(9)) == 9:
            told = frames.read(int.from_bytes(head[:3], "big"))
            if head[3] == HEADERS and b"grpc-status" in told:
                return told
    return b""


def test_a_request_that_does_not_come_and_a_stream_without_any_are_ended_and_told(tmp_path: Path) -> None:
    with front(tmp_path, by_grpc=True, idle_s=3.0, body_s=1.0) as server:
        for method, part, why in (
            ("ModelInfer", struct.pack(">BI", 0, 500) + b"x", b"did not come within 1 s"),
            ("ServerReady", b"", b"did not come within 1 s"),
            ("ModelStreamInfer", struct.pack(">BI", 0, 500) + b"x", b"no request came for 3 s"),
        ):
            with server.connect(server.grpc) as sock:
                sock.sendall(BEGUN + call(method, 1) + (frame(DATA, part, stream=1) if part else b""))
                told = end_of_answer(sock)
                assert b"grpc-status\x014" in told and why in told, told  # DEADLINE_EXCEEDED
        assert answered(server)
