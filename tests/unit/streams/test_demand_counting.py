"""Faust's agent that counts demand: one record at which it fails is skipped alone."""

from collections import defaultdict
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

pytest.importorskip("faust", reason="faust-streaming is not installed: pip install 'sluicegate[faust]'")

import time

from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth

from sluicegate.domain.events import DemandCounted
from sluicegate.streams.broker_settings import KafkaOAuth, KafkaSecurity, KafkaSettings
from sluicegate.streams.faust.demand_app import _Counting, _credentials
from sluicegate.streams.kafka.connection import connection
from sluicegate.streams.ports import Record
from sluicegate.streams.records import control
from sluicegate.streams.records.demand_windows import decode_windows
from sluicegate.streams.signing import HEADER, Signing


class Windows:
    """A table that cannot hold the app "odd"."""

    def __init__(self) -> None:
        self.table = self
        self.window = self
        self._held: defaultdict[str, defaultdict[Any, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))

    def current(self, at: float) -> tuple[float, float]:
        return (at // 1.0, at // 1.0 + 1.0)

    def __getitem__(self, app: str) -> Any:
        if app == "odd":
            raise OverflowError("int too large to convert to float")
        return self._held[app]


class Published:
    def __init__(self) -> None:
        self.values: list[bytes] = []

    def get_topic_name(self) -> str:
        return "demand-windows"

    async def send(self, key: bytes, value: bytes, headers: object) -> None:
        assert (key, headers) == (b"toy", None)
        self.values.append(value)


class Gaps:
    topic = "demand"


async def test_a_count_at_which_it_fails_is_skipped_alone(caplog: pytest.LogCaptureFixture) -> None:
    published = Published()
    counting = _Counting(Windows(), published, Gaps(), None)  # type: ignore[arg-type]
    now = time.time()
    sound = control.encode_demand(DemandCounted("toy", 7, 0.5), source="a", at=now)
    huge = sound.replace(b":7,", b":" + b"9" * 400 + b",")
    assert huge != sound
    for offset, value in enumerate((huge, sound.replace(b"toy", b"odd"), orjson.dumps([]), sound)):
        await counting._count(value, offset, now)
    (told,) = published.values
    assert sum(half.rows for half in decode_windows(told).halves) == 7
    for offset in range(3):
        assert f"demand offset {offset} skipped" in caplog.text


async def test_a_signed_count_that_is_written_once_more_counts_once_wherever_it_is_read() -> None:
    """In its partition, in another, and apart from the others, where Faust passed it over."""
    signing = Signing(prefix="sys", key=b"a key of the system")
    topic, now = "sys.metrics.demand", time.time()

    def count(partition: int, offset: int, rows: int) -> Record:
        value = control.encode_demand(DemandCounted("toy", rows, 0.5), source="a", at=now)
        signed = ((HEADER, signing.signature(topic, b"toy", value, now)),)
        return Record(topic, partition, offset, b"toy", value, signed, now)

    class Passed(Gaps):
        async def before(self, partition: int, offset: int) -> list[Record]:
            return {(0, 7): [count(0, 5, 7), count(0, 6, 20)]}.get((partition, offset), [])

    class Stream:
        async def events(self) -> AsyncIterator[Any]:
            for record in (count(0, 4, 7), count(0, 7, 300), count(1, 2, 300), count(0, 8, 20), count(0, 9, 4000)):
                yield SimpleNamespace(message=record, value=record.value)

    class Signed(Published):
        async def send(self, key: bytes, value: bytes, headers: object) -> None:
            self.values.append(value)

    published = Signed()
    await _Counting(Windows(), published, Passed(), signing).run(Stream())  # type: ignore[arg-type]
    told = [sum(half.rows for half in decode_windows(value).halves) for value in published.values]
    assert told == [7, 27, 327, 4327]


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize(
    "who",
    [
        {"sasl_mechanism": "OAUTHBEARER", "oauth": KafkaOAuth("https://id.example/token", "me", "s3cret")},
        {"sasl_mechanism": "SCRAM-SHA-256", "username": "me", "password": "s3cret"},
    ],
    ids=["oauth", "password"],
)
def test_faust_proves_who_it_is_as_all_other_clients_do(protocol: str, who: dict[str, Any]) -> None:
    settings = KafkaSettings(security=KafkaSecurity(protocol=protocol, **who))
    ours = {
        name: held for name, held in connection("b:9093", settings).items() if name.startswith(("sasl", "security"))
    }
    theirs = credentials_to_aiokafka_auth(_credentials("b:9093", settings))
    assert {name: theirs[name] for name in ours} == ours
    assert (theirs["ssl_context"] is not None) == (protocol == "SASL_SSL")
