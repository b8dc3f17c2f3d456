"""``sluice replay``: what the broker never acknowledged is lost, is said, and ends with 1."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sluicegate.domain.errors import InvalidInputError
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.sluice.commands.offline import simulate
from sluicegate.sluice.commands.running import demo, infer, replay
from sluicegate.sluice.load import open_loop_client
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import Written
from tests.harness import toy_catalogue

app = typer.Typer()
replay.register(app)

Fate = Callable[[int, "asyncio.Future[Written]"], None]


class Forgetful(MemoryBroker):
    """A broker that says nothing of what is served. ``fate`` decides what becomes of each send, by its number."""

    def __init__(self, fate: Fate) -> None:
        super().__init__()
        self._fate = fate

    def producer(self) -> "Fated":  # type: ignore[override]
        return Fated(self._fate)


class Fated:
    """Its producer."""

    def __init__(self, fate: Fate) -> None:
        self._fate = fate
        self._sends = 0

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def try_send(self, *_: Any, **__: Any) -> None:
        return None

    async def send(self, topic: str, *_: Any, **__: Any) -> "asyncio.Future[Written]":
        self._sends += 1
        sent: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        self._fate(self._sends, sent)
        return sent


def acknowledge(sent: "asyncio.Future[Written]") -> None:
    sent.set_result(Written("t", 0, 0))


def refuse(sent: "asyncio.Future[Written]") -> None:
    raise InvalidInputError("record", "is too large")


@pytest.fixture
def replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A second of 60 queries/s, or another trace, on such a broker; (exit code, its JSON, standard error)."""
    save_catalogue(tmp_path / "catalogue", toy_catalogue(), {})
    monkeypatch.setenv("SLUICE_CATALOGUE", str(tmp_path / "catalogue"))
    monkeypatch.setattr(open_loop_client, "_PATIENCE", 0.2)

    async def unreadable(*_: object, **__: object) -> None:
        """Of the registry, by this user."""

    monkeypatch.setattr(replay, "await_served", unreadable)

    def run(fate: Fate, trace: Sequence[str] = ("generator", "--qps", "60", "--duration", "1")) -> Any:
        monkeypatch.setattr(replay, "connected", lambda *_: Forgetful(fate))
        arguments = [*trace, "--into", "kafka://nowhere:1", "--json"]
        ended = CliRunner().invoke(app, arguments)
        assert ended.stdout, (ended.stderr, ended.exception)
        assert "\n\n" not in f"\n{ended.stderr}", "a bar that nobody sees leaves no line"
        return ended.exit_code, json.loads(ended.stdout), " ".join(ended.stderr.split())

    return run


def test_all_acknowledged_is_success(replayed: Callable[[Fate], Any]) -> None:
    code, counted, told = replayed(lambda _, sent: acknowledge(sent))
    assert code == 0 and "lost" not in told
    assert counted["queries"] == counted["acknowledged"] > 5 and counted["lost"] == 0


def test_queries_that_are_never_acknowledged_are_told_and_end_with_1(replayed: Callable[[Fate], Any]) -> None:
    code, counted, told = replayed(lambda number, sent: acknowledge(sent) if number % 3 else None)
    assert code == 1
    assert counted["lost"] == counted["queries"] - counted["acknowledged"] == counted["queries"] // 3 > 1
    assert f"lost {counted['lost']} of {counted['queries']} queries" in told


def test_queries_that_the_broker_refuses_are_lost_too(replayed: Callable[[Fate], Any]) -> None:
    code, counted, told = replayed(lambda number, sent: acknowledge(sent) if number % 4 else refuse(sent))
    assert code == 1 and counted["lost"] == counted["queries"] // 4 > 1
    assert f"lost {counted['lost']} of {counted['queries']} queries" in told


def test_behind_a_slow_broker_it_waits_and_all_is_sent(
    replayed: Callable[[Fate], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_loop_client, "_MOST_UNACKNOWLEDGED", 1_500)
    under_way: list[int] = []
    acknowledged = 0

    def slowly(number: int, sent: "asyncio.Future[Written]") -> None:
        def now() -> None:
            nonlocal acknowledged
            acknowledged += 1
            acknowledge(sent)

        under_way.append(number - acknowledged)
        asyncio.get_running_loop().call_later(0.05, now)

    code, counted, _ = replayed(slowly)
    assert code == 0 and counted["queries"] == counted["acknowledged"] > 30
    assert 1 < max(under_way) < 20


def test_behind_a_broker_that_never_answers_it_ends_before_memory_does(
    replayed: Callable[[Fate], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_loop_client, "_MOST_UNACKNOWLEDGED", 1_500)
    code, counted, told = replayed(lambda _, sent: None)
    assert code == 1 and 1 < counted["queries"] == counted["lost"] < 20
    assert "the rest is not sent" in told or "did not acknowledge" in told


def test_ctrl_c_ends_it_in_order_also_where_nothing_is_due_and_says_what_was_sent(
    replayed: Callable[..., Any], tmp_path: Path
) -> None:
    trace = tmp_path / "counts.csv"
    trace.write_text("\n".join(["20", *["0"] * 400, "20"]))

    def interrupted(number: int, sent: "asyncio.Future[Written]") -> None:
        acknowledge(sent)
        if number == 3:
            os.kill(os.getpid(), signal.SIGINT)

    code, counted, told = replayed(interrupted, [str(trace)])
    assert code == 0 and 3 <= counted["queries"] == counted["acknowledged"] <= 20
    assert "lost" not in told


def test_as_what_a_file_is_read_is_said_where_it_was_not(replayed: Callable[..., Any], tmp_path: Path) -> None:
    trace = tmp_path / "toy.txt"
    trace.write_text("7\n12\n30\n")

    def told(*options: str) -> Any:
        return replayed(lambda _, sent: acknowledge(sent), [str(trace), "--app", "toy", "--duration", "1", *options])

    assert "toy.txt: read as counts per second; --format arrivals reads lines as times" in told()[2]
    assert "read as" not in told("--format", "counts")[2]
    _, counted, said = told("--format", "arrivals")
    assert counted["queries"] == 3 and "read as" not in said


@pytest.mark.parametrize("seed", ["-1", str(2**63), "99999999999999999999"])
@pytest.mark.parametrize(
    "command",
    [["replay", "generator", "--qps", "1"], ["demo"], ["simulate", "none.yaml"]],
    ids=["replay", "demo", "simulate"],
)
def test_a_seed_below_0_or_too_large_for_json_is_refused_as_an_option(command: list[str], seed: str) -> None:
    whole = typer.Typer()
    replay.register(whole)
    demo.register(whole)
    simulate.register(whole)
    ended = CliRunner().invoke(whole, [*command, "--seed", seed], env={"COLUMNS": "200"})
    assert ended.exit_code == 2 and "Invalid value for '--seed'" in ended.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["replay", "tracs/nosuch.csv"], "TRACE tracs/nosuch.csv: is not there; give a file, a folder or 'generator'"),
        (["replay", "generater"], "give a file, a folder or 'generator'; did you mean generator?"),
        (
            ["infer", "--app", "digits", "--input", "nosuch.npz"],
            "--input nosuch.npz: No such file or directory; give a",
        ),
    ],
)
def test_a_file_that_is_not_there_is_refused_before_a_system_is_waited_for(
    command: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said in refused_at_once(command, monkeypatch)


@pytest.mark.parametrize("latency", ["nan", "inf", "-5", "0"])
@pytest.mark.parametrize("command", [["replay", "generator"], ["infer", "--app", "digits"]], ids=["replay", "infer"])
def test_a_latency_that_no_query_can_ask_for_is_refused_as_an_option(
    command: list[str], latency: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = refused_at_once([*command, "--latency-ms", latency], monkeypatch)
    assert f"--latency-ms {latency}: give milliseconds, above 0 and finite" in told


def refused_at_once(command: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What is said of ``command``, which no system is waited for."""

    def waited(*_: object, **__: object) -> str:
        raise AssertionError("a system was waited for")

    monkeypatch.setattr(replay, "awaited_url", waited)
    monkeypatch.setattr(infer, "awaited_url", waited)
    asked = typer.Typer()
    replay.register(asked)
    infer.register(asked)
    ended = CliRunner().invoke(asked, command)
    assert ended.exit_code == 2, ended.exception
    return ended.stderr
