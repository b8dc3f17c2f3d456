"""Who floods, dribbles or talks nonsense to the HTTP front and the page: innocents are answered meanwhile."""

import gzip
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.harness import PATIENCE_S
from tests.outside.fronts import INFER, Front, all_closed, front, received
from tests.outside.processes import processes, settings_file

MIB = 1 << 20


def test_a_thousand_half_requests_cost_innocents_nothing_and_are_closed(
    broker_url: str, tmp_path: Path, measured: Callable[[str, str], None]
) -> None:
    with front(tmp_path, broker_url, idle_s=4.0, body_s=3.0) as server, ExitStack() as stack:
        before = server.descriptors()
        open_socks: list[socket.socket] = []
        for number in range(1500):
            sock = stack.enter_context(server.connect(server.web if number % 10 == 3 else server.http))
            if number % 3 == 0:
                sock.sendall(INFER)  # half a head
            elif number % 30 == 1:
                sock.sendall(INFER + b"Content-Length: 500\r\n\r\n{")  # half a body
            open_socks.append(sock)
        server.asked_until_served()  # who is without a request makes room after a second
        assert [server.ask() for _ in range(10)] == [200] * 10
        refused = 2 * 64  # as many of each endpoint read why, at most
        assert server.descriptors() <= before + 1024 + 128 + refused + 32
        all_closed(open_socks, within=60.0)
        assert server.ask() == 200
        assert "Traceback" not in server.said()
        assert len(server.said().splitlines()) <= 5, server.said()
        cost = server.cost()
        measured(
            f"1,500 half-open HTTP connections, {broker_url.partition(':')[0]}",
            f"11 of 11 served; {cost}; {server.audited()}",
        )


def test_who_has_no_room_is_told_so_and_idle_connections_make_room(tmp_path: Path) -> None:
    with front(tmp_path, connections=20, idle_s=60.0) as server, ExitStack() as stack:
        socks = [stack.enter_context(server.connect()) for _ in range(30)]
        refused = [received(sock, 30.0) for sock in socks[25:]]
        assert all(told.startswith(b"HTTP/1.1 503 ") and b"too many connections" in told for told in refused)
        for sock in socks[20:]:
            sock.close()  # as many linger, and no more are told
        assert set(server.asked_until_served()) <= {0, 200, 503}  # 0 while as many linger
        assert received(socks[0], 30.0) == b""  # it was the longest without a request
        socks[19].sendall(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert received(socks[19], 30.0).startswith(b"HTTP/1.1 200 ")


def test_who_sends_no_body_makes_room(tmp_path: Path) -> None:
    with front(tmp_path, connections=20, idle_s=120.0, body_s=120.0) as server, ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(server.connect()).sendall(INFER + b"Content-Length: 500\r\n\r\n{")
        began = time.monotonic()
        assert set(server.asked_until_served()) <= {0, 200, 503}
        assert time.monotonic() < began + 60.0, "half of what a body may take"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def flood(server: Front, answers: list[bytes], stop: threading.Event, path: bytes = INFER) -> None:
    """Chunks without end, as fast as they are taken, again and again."""
    part = chunk(b" " * 65536)
    while not stop.is_set():
        with server.connect() as sock:
            sock.settimeout(1.0)
            try:
                sock.sendall(path + b"Sluice-Log: 1\r\nTransfer-Encoding: chunked\r\n\r\n")
                for _ in range(4000):  # 250 MiB
                    sock.sendall(part)
            except OSError:
                pass
            try:
                answers.append(sock.recv(200))
            except OSError:
                answers.append(b"")


def test_chunks_without_end_are_refused_at_the_limit_and_nothing_grows(
    tmp_path: Path, measured: Callable[[str, str], None]
) -> None:
    with front(tmp_path) as server:
        before = server.resident()
        answers: list[bytes] = []
        stop = threading.Event()
        floods = [threading.Thread(target=flood, args=(server, answers, stop)) for _ in range(4)]
        for one in floods:
            one.start()
        most = 0
        statuses = []
        for _ in range(25):
            statuses.append(server.ask())
            most = max(most, server.resident())
            time.sleep(0.1)
        stop.set()
        for one in floods:
            one.join()
        assert 200 in statuses
        assert set(statuses) <= {200, 504}, statuses  # the flood takes processor time: some may be late, none stands
        assert most - before < 40 * MIB, (before, most)
        assert len(answers) >= 4
        told = [answer for answer in answers if answer]
        assert told
        assert all(answer.startswith(b"HTTP/1.1 413 ") for answer in told)
        assert "Traceback" not in server.said()
        served, cost = f"{statuses.count(200)} of {len(statuses)} served within 9 s", server.cost()
        measured("four floods of endless chunks", f"{served}; {cost}; {server.audited()}")


def test_a_compressed_body_may_not_be_larger_than_another(tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(300 * MIB), 9)
    assert len(bomb) < MIB
    with front(tmp_path) as server, server.connect() as sock:
        before = server.resident()
        sock.sendall(INFER + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb) + bomb)
        told = received(sock, 30.0)
        assert told.startswith(b"HTTP/1.1 413 ")
        assert server.resident() - before < 40 * MIB
        assert server.ask() == 200


def test_a_body_that_does_not_come_or_cannot_be_read_is_answered_and_closed(tmp_path: Path) -> None:
    log = b"POST /log/produce HTTP/1.1\r\nHost: localhost\r\nSluice-Log: 1\r\n"
    cases = [
        (INFER, b"Content-Length: 500\r\n\r\n{", b"408"),
        (INFER, b"Transfer-Encoding: chunked\r\n\r\n5\r\n12", b"408"),
        (INFER, b"Transfer-Encoding: chunked\r\n\r\n5\r\n12345\r\nzz\r\n", b"400"),
        (INFER, b"Content-Length: 1000001\r\n\r\n{", b"413"),
        (log, b"Content-Length: 500\r\n\r\n{", b"408"),
        (log, b"Content-Length: 99000000\r\n\r\n{", b"413"),
        (log, b"Content-Length: 4\r\n\r\n\xff\xff\xff\xff", b"400"),
    ]
    with front(tmp_path, body_s=1.0) as server:
        for head, rest, status in cases:
            with server.connect() as sock:
                sock.sendall(head + b"Connection: close\r\n" + rest)
                assert received(sock, 40.0).split()[1:2] == [status], (head, rest)  # the log gives a body 10 s
        assert server.ask() == 200
        assert "Traceback" not in server.said()


def test_who_does_not_take_his_answer_loses_the_connection(tmp_path: Path) -> None:
    with front(tmp_path, idle_s=1.0) as server, server.connect(server.web) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(0.5)
        try:
            while True:  # answers pile up until it stops reading our requests
                sock.sendall(b"GET /page.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)
        except TimeoutError:
            pass
        before = server.descriptors()
        end = time.monotonic() + 300.0
        while server.descriptors() >= before:
            assert time.monotonic() < end
            time.sleep(0.1)


def test_nonsense_is_logged_in_few_lines(tmp_path: Path) -> None:
    nonsense: list[Callable[[int], bytes]] = [
        lambda i: b"\x16\x03\x01\x02\x00\x01" + bytes([i % 256]) * 50,
        lambda i: b"GET / HTTP/9.%d\r\n\r\n" % i,
        lambda i: INFER + b"Content-Length: -%d\r\n\r\n" % (i + 1),
        lambda i: INFER + b"X: " + b"y" * 20000 + b"\r\n\r\n",
        lambda i: b"\r\n\x00\x00%d\r\n\r\n" % i,
        lambda i: INFER + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    ]
    with front(tmp_path, idle_s=2.0) as server:
        for number in range(300):
            with server.connect(server.web if number % 4 == 0 else server.http) as sock:
                sock.sendall(nonsense[number % len(nonsense)](number))
                told = received(sock, 30.0)
                assert told.startswith(b"HTTP/1.") or not told
        assert server.ask() == 200
        assert "Traceback" not in server.said()
        lines = server.said().splitlines()
        assert len(lines) <= 12, server.said()
        assert len(lines) >= 1


def test_with_64_descriptors_a_thousand_connections_do_not_stop_the_system(
    broker_url: str, tmp_path: Path, measured: Callable[[str, str], None]
) -> None:
    with front(tmp_path, broker_url, descriptors=64, idle_s=2.0) as server, ExitStack() as stack:
        socks = []
        for number in range(1000):
            sock = stack.enter_context(socket.socket())
            sock.settimeout(5.0)
            sock.connect_ex(("127.0.0.1", server.web if number % 4 == 0 else server.http))
            if number % 3 == 0:
                with suppress(OSError):
                    sock.sendall(INFER)
            socks.append(sock)
        began = time.monotonic()
        end = began + 300.0
        statuses: list[int] = []
        while statuses[-5:] != [200] * 5:  # who comes while all are taken is told so, and nobody else is hurt
            try:
                statuses.append(server.ask())
            except OSError:
                statuses.append(0)
            assert time.monotonic() < end, (statuses, server.said())
            time.sleep(0.2)
        assert server.process.process.poll() is None
        assert server.descriptors() <= 64 - 4, "what is kept for the broker and for executors"
        assert len(server.said()) < 100_000, server.said()[-2000:]
        assert "Too many open files" not in server.said()
        told = f"five served in a row {time.monotonic() - began:.1f} s after 1,000 connections; {server.cost()}"
        measured(f"64 descriptors, 1,000 connections, {broker_url.partition(':')[0]}", f"{told}; {server.audited()}")


def test_a_process_that_has_too_few_descriptors_says_so_and_does_not_start(tmp_path: Path) -> None:
    with processes(tmp_path) as start:
        process = start("", *settings_file("memory://", tmp_path, devices=16), DESCRIPTORS="48")
        assert process.process.wait(PATIENCE_S) == 2
        assert "may open 48 files and needs 54 for 22 stages" in " ".join(process.log.split())
