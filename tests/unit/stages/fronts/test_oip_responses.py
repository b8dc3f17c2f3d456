"""What both fronts make of a result, and of a request: parameters as the protocol and JSON allow them, or none."""

import json
from typing import Any

import orjson
import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.outcome import Outcome, OutcomeKind, PromiseState, Reason
from sluicegate.domain.plan import Epoch
from sluicegate.domain.query import Query
from sluicegate.stages.fronts.front_error import FrontError, check_answered
from sluicegate.stages.fronts.grpc_messages import MESSAGES
from sluicegate.stages.fronts.grpc_tensors import body_of, response_of
from sluicegate.stages.fronts.oip_responses import Asked, refusal_header, respond, with_model
from sluicegate.streams.ports import Record
from sluicegate.streams.records import codec
from sluicegate_client.answers import outcome_of

NOW = 1_800_000_000.0
STATE = PromiseState(
    max_consecutive=2, weakly_hard=((1, 5),), queries=9, misses=3, mcd=1, worst=((5, 1),), safe_mode=True
)


def result(kind: OutcomeKind, promise: PromiseState | None = STATE, **more: Any) -> codec.OutcomeMessage:
    """As the front reads it from the topic."""
    query = Query("q1", "toy", NOW, NOW + 1, source="/http")
    outcome = Outcome.of(query, kind, NOW + 0.1, variant="v", epoch=Epoch(3, 7), promise=promise, **more)
    outputs = (Tensor("scores", "FP32", (1, 1), b"\0\0\0\0"),) if kind is OutcomeKind.ANSWERED else ()
    message = codec.encode_outcome(outcome, outputs)
    return codec.decode_outcome(Record("t.app.toy.results", 0, 0, message.key, message.value, message.headers, NOW))


def of_http(kind: OutcomeKind, **more: Any) -> dict[str, Any]:
    if kind is not OutcomeKind.ANSWERED:
        told: dict[str, Any] = json.loads(refusal_header(result(kind, **more).body))
        return told
    body: dict[str, Any] = orjson.loads(respond(result(kind, **more), Asked())[0])
    return body


@pytest.mark.parametrize("kind", [OutcomeKind.ANSWERED, OutcomeKind.EXPIRED])
def test_over_http_parameters_are_texts_numbers_and_booleans(kind: OutcomeKind) -> None:
    body = of_http(kind)
    assert {type(value) for value in body["parameters"].values()} <= {str, int, float, bool}
    assert body["parameters"]["epoch"] == "3.7"
    told = orjson.loads(body["parameters"]["promise"])
    assert (told["max_consecutive"], told["queries"], told["worst"], told["safe_mode"]) == (2, 9, [[5, 1]], True)
    assert "promise" not in of_http(kind, promise=None)["parameters"]


def test_over_grpc_the_state_of_a_promise_is_a_text() -> None:
    told = response_of(result(OutcomeKind.ANSWERED), "mine", None).parameters
    assert orjson.loads(told["promise"].string_param)["misses"] == 3
    assert told["late"].bool_param is False and told["kind"].string_param == "answered"


@pytest.mark.parametrize("kind", [OutcomeKind.ANSWERED, OutcomeKind.EXPIRED])
def test_the_client_reads_the_same_promise_from_the_front_and_from_the_topic(kind: OutcomeKind) -> None:
    by_topic = outcome_of(orjson.loads(result(kind).body))
    by_front = outcome_of(of_http(kind))
    assert by_front.parameters["promise"] == by_topic.parameters["promise"]
    assert by_front.parameters["promise"]["mcd"] == 1
    assert outcome_of(of_http(kind, promise=None)).parameters.get("promise") is None


def test_what_is_nested_too_deep_to_be_written_again_is_refused() -> None:
    body = b'{"inputs":[],"parameters":{"accuracy":%b}}'
    assert with_model(body % (b"[" * 100 + b"]" * 100), None, "v")[0].endswith(b',"model":"v"}}')
    with pytest.raises(InvalidInputError, match=r"body: cannot be taken .*; nest it less deep"):
        with_model(body % (b"[" * 600 + b"]" * 600), None, "v")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_parameters_of_grpc_that_json_has_no_numbers_for_are_refused_by_their_name(value: float) -> None:
    request = MESSAGES["ModelInferRequest"](model_name="toy")
    request.parameters["latency_ms"].double_param = 250.5
    body, length = body_of(request)
    assert orjson.loads(body[: int(length)])["parameters"] == {"latency_ms": 250.5}
    request.parameters["accuracy"].double_param = value
    with pytest.raises(InvalidInputError, match=r"parameters\.accuracy: is -?(nan|inf); give a finite number"):
        body_of(request)


@pytest.mark.parametrize(
    ("kind", "reason", "status", "again"),
    [
        (OutcomeKind.REJECTED, Reason.INVALID, 400, False),
        (OutcomeKind.REJECTED, Reason.UNKNOWN_APP, 404, False),
        (OutcomeKind.REJECTED, Reason.TOO_LARGE, 400, False),
        (OutcomeKind.REJECTED, Reason.OVER_SHARE, 429, True),
        (OutcomeKind.REJECTED, Reason.OVER_SUSTAINABLE_RATE, 429, True),
        (OutcomeKind.REJECTED, Reason.NOTHING_ROUTES, 503, True),
        (OutcomeKind.FAILED, Reason.MODEL_ERROR, 500, False),
        (OutcomeKind.DROPPED, Reason.SHED, 503, True),
        (OutcomeKind.EXPIRED, "", 504, False),
    ],
)
def test_its_status_says_whether_to_ask_again(kind: OutcomeKind, reason: str, status: int, again: bool) -> None:
    with pytest.raises(FrontError) as refused:
        check_answered(result(kind, reason=reason))
    assert (refused.value.status, refused.value.retry_after is not None) == (status, again)
