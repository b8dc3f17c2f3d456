"""What a client is given to ask: what has no word in a query is refused by name, and nothing else is made of it. What a
front refuses is asked again when that says."""

import asyncio
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest

from sluicegate_client import (
    Answer,
    Client,
    ClientError,
    InvalidQueryError,
    Outcome,
    RefusedError,
    Security,
    Tensor,
)
from sluicegate_client.log import Log
from sluicegate_client.over_http import seconds_told
from sluicegate_client.query import Query
from sluicegate_client.tensors import tensor_of

MASKED = np.ma.masked_greater(np.array([[1.0, 9.0]], np.float32), 5.0)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (MASKED, "inputs.x: has masked elements"),
        ([1e300], "inputs.x: does not fit FP32"),
        ([1 << 70], "inputs.x: does not fit INT64"),
        (["a", 1], "inputs.x: holds ['a', 1]; give texts or bytes only"),
        (["\ud800"], "inputs.x: is no text that UTF-8 has"),
        (np.array(["a", None], object), "inputs.x: is ['a', None]"),
    ],
)
def test_an_input_that_cannot_be_asked_is_refused_by_its_name(value: Any, problem: str) -> None:
    with pytest.raises(InvalidQueryError, match="^" + re.escape(problem)):
        tensor_of("x", value)


def test_an_array_without_a_masked_element_is_taken_in_any_order_of_its_memory() -> None:
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    for same in (np.ma.array(rows), np.asfortranarray(rows), np.repeat(rows, 2, 1)[:, ::2], rows.astype(">f4")):
        assert tensor_of("x", same) == Tensor("FP32", (2, 3), rows.tobytes())


@pytest.mark.parametrize("name", ["x y\n", "\ud800", "é" * 129, "x" * 257, 5, b"x"])
def test_an_id_or_a_source_that_the_system_takes_from_nobody_is_refused_before_it_is_asked(name: Any) -> None:
    with pytest.raises(InvalidQueryError, match=r"^query_id: is .* 1 to 256 bytes"):
        Query(name, {})
    if not isinstance(name, int | bytes):
        with pytest.raises(InvalidQueryError, match=r"^source: is "):
            Client("kafka://here:1", source=name)
    for taken in ("x" * 256, "é" * 128, "a b"):
        assert Query(taken, {}).id == taken


OWN = cast(Log, object())


@pytest.mark.parametrize(
    ("at", "given", "problem"),
    [
        ("http://here:1", {"source": "billing"}, "source: would do nothing over http://"),
        ("https://here:1", {"prefix": "other", "key": "k"}, "prefix, key: would do nothing over http://"),
        ("http://here:1", {"security": Security()}, "security: would do nothing over http://"),
        ("kafka://here:1", {"token": "t"}, "token: would do nothing over kafka://"),
        (OWN, {"token": "t", "security": Security()}, "token, security: would do nothing over a log of one's own"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused_by_its_name(
    at: str | Log, given: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ClientError, match=f"^{problem}; leave it out$"):
        Client(at, **given)


def test_an_option_that_does_something_or_says_what_holds_without_it_is_taken() -> None:
    Client("http://here:1", prefix="sluice", source="client", key=None, security=None, token="t")
    Client("kafka://here:1", prefix="other", source="billing", key="k", security=Security(), token=None)
    Client(OWN, prefix="other", source="billing", key="k")


async def test_an_id_that_a_front_would_not_take_is_refused_before_it_is_asked() -> None:
    client = Client("http://127.0.0.1:1")
    client._connected = True
    for asking in (
        client.infer("app", {"x": [1]}, query_id="mine"),
        client.infer_batch("app", [{"x": [1]}], query_id="mine"),
    ):
        with pytest.raises(InvalidQueryError, match="query_id: is told over kafka:// only"):
            await asking


@pytest.mark.parametrize("stream", ["\ud800", 5, b"x"])
def test_a_stream_is_a_text(stream: Any) -> None:
    with pytest.raises(InvalidQueryError, match=r"^stream: is .* give a text"):
        Query("q", {}, stream=stream)
    assert Query("q", {}, stream="").stream == ""


def test_texts_are_no_booleans() -> None:
    assert Tensor.of("BOOL", [True, False]).data == b"\1\0"
    with pytest.raises(InvalidQueryError, match="give booleans only"):
        Tensor.of("BOOL", ["False"])


def test_parameters_and_shapes_may_be_of_numpy() -> None:
    point = Tensor("FP32", tuple(np.array([1, 2])), bytes(8))
    asked = Query("q", {"x": point}, {"latency_ms": np.float32(100.5), "priority": np.int64(3)})
    body = json.loads(asked.body()[0])
    assert body["parameters"] == {"latency_ms": 100.5, "priority": 3}
    assert body["inputs"][0]["shape"] == [1, 2]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), Decimal(100), {1}, np.arange(3)])
def test_a_parameter_that_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(InvalidQueryError, match=r"^parameters: .*; give texts and finite numbers"):
        Query("q", {}, {"latency_ms": value}).body()


async def test_inputs_have_names_and_rows() -> None:
    client = Client("http://127.0.0.1:1")
    with pytest.raises(InvalidQueryError, match="inputs: 3 has no rows"):
        await client.infer_rows("app", {"x": 3})
    client._connected = True
    unnamed: Any = np.zeros((1, 2))
    with pytest.raises(InvalidQueryError, match="inputs: is of type ndarray; give a mapping"):
        await client.infer("app", unnamed)


ANSWERED = Answer(Outcome(query_id="q", app="affine", kind="answered", late=False), {}, b"")
DROPPED = Outcome(query_id="q", app="affine", kind="dropped", late=False, reason="no_capacity")


class Busy(Client):
    """Of a front that refuses each query as often as it has a wait to tell, by an outcome where it has no status, and
    notes when it was asked."""

    def __init__(self, *waits: float | None, timeout: float, status: int | None = 503) -> None:
        super().__init__("http://127.0.0.1:1", timeout=timeout)
        self._waits, self._status = list(waits), status
        self.asked: list[float] = []

    async def infer(self, app: str, *_: Any, **__: Any) -> Answer:
        self.asked.append(asyncio.get_running_loop().time())
        if not self._waits:
            return ANSWERED
        if self._status is None:
            return Answer(DROPPED, {}, b"", self._waits.pop(0))
        raise RefusedError(self._status, "busy", self._waits.pop(0))

    @property
    def pauses(self) -> list[float]:
        return [round(then - one, 6) for one, then in pairwise(self.asked)]


@pytest.mark.virtual
async def test_a_refused_query_is_asked_again_when_the_front_says_and_soon_where_it_does_not() -> None:
    client = Busy(7.0, None, 0.0, 3.0, timeout=40.0)
    assert await client.infer_batch("affine", [{}]) == [ANSWERED]
    assert client.pauses == [7.0, 0.1, 0.1, 3.0]


@pytest.mark.virtual
async def test_a_query_that_ended_because_the_front_is_busy_is_asked_again_when_that_says() -> None:
    client = Busy(7.0, 0.0, 3.0, timeout=40.0, status=None)
    assert await client.infer_batch("affine", [{}]) == [ANSWERED]
    assert client.pauses == [7.0, 0.1, 3.0]
    client = Busy(7.0, 4.0, 1.0, timeout=10.0, status=None)
    (last,) = await client.infer_batch("affine", [{}])
    assert (client.pauses, last.outcome.reason, last.retry_after) == ([7.0], "no_capacity", 4.0)
    client = Busy(None, timeout=10.0, status=None)
    (last,) = await client.infer_batch("affine", [{}])
    assert (client.pauses, last.outcome) == ([], DROPPED)


class Slow(Client):
    """Answers each query after the seconds that it gives, with them as its id."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self.ended = 0

    async def infer(self, app: str, inputs: Any, **_: Any) -> Answer:
        await asyncio.sleep(inputs["takes"])
        self.ended += 1
        return Answer(Outcome(query_id=str(inputs["takes"]), app=app, kind="answered", late=False), {}, b"")


@pytest.mark.virtual
async def test_a_batch_draws_its_inputs_as_it_asks_them_and_answers_in_their_order() -> None:
    client = Slow()
    ahead: list[int] = []
    takes = [5, 1, 4, 1, 3, 2, 9, 1]

    def inputs() -> Iterator[dict[str, int]]:
        for number, seconds in enumerate(takes):
            ahead.append(number + 1 - client.ended)
            yield {"takes": seconds}

    answers = await client.infer_batch("affine", inputs(), at_once=3)
    assert [answer.outcome.query_id for answer in answers] == [str(seconds) for seconds in takes]
    assert ahead == [1, 2, 3, 3, 3, 3, 3, 3]
    assert await client.infer_batch("affine", iter(()), at_once=3) == []


@pytest.mark.virtual
@pytest.mark.parametrize(("at_once", "ended"), [(2, 1), (3, 0)])
async def test_inputs_that_fail_to_be_drawn_fail_their_batch_and_nothing_is_asked_on(at_once: int, ended: int) -> None:
    client = Slow()

    def inputs() -> Iterator[dict[str, int]]:
        yield from ({"takes": 9}, {"takes": 1})
        raise OSError("the file has ended")

    with pytest.raises(OSError, match="the file has ended"):
        await client.infer_batch("affine", inputs(), at_once=at_once)
    await asyncio.sleep(20.0)
    assert client.ended == ended


@pytest.mark.virtual
async def test_no_refusal_is_waited_out_that_lasts_longer_than_the_clients_timeout() -> None:
    client = Busy(7.0, 4.0, timeout=10.0, status=429)
    with pytest.raises(RefusedError) as refused:
        await client.infer_batch("affine", [{}])
    assert (client.pauses, refused.value.retry_after) == ([7.0], 4.0)


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 37.5),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 37.5),
        ("Sun Nov  6 08:49:37 1994", 37.5),
        ("Sun, 06 Nov 1994 08:48:00 GMT", 0.0),
        pytest.param("9" * 400, float("inf"), id="more than a float"),
        *((other, None) for other in ("", " ", "-1", "1.5", "soon", "\u0662", "Sun, 06 Foo 1994 08:49:37 GMT")),
        ("Sun, 06 Nov 99999 08:49:37 GMT", None),
    ],
)
def test_when_to_ask_again_is_told_in_seconds_or_as_a_date(told: str, seconds: float | None) -> None:
    assert seconds_told(told, now=784111739.5) == seconds
