"""Names of topics, what is created, and the document that tells of them."""

import jsonschema
import orjson
import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import TensorSpec
from sluicegate.streams.describe.asyncapi import document
from sluicegate.streams.topics import Topics, check_topic_name

APP = App(name="digits", slo=0.2, inputs=(TensorSpec("image", "FP32", (784,)),), max_rows=4)


def test_names_are_those_of_the_design() -> None:
    topics = Topics("sluice")
    assert topics.queries("digits") == "sluice.app.digits.queries"
    assert topics.admitted("digits") == "sluice.app.digits.admitted"
    assert topics.work("cpu0") == "sluice.device.cpu0.work"
    assert topics.results("digits") == "sluice.app.digits.results"
    assert (topics.demand, topics.devices_metrics) == ("sluice.metrics.demand", "sluice.metrics.devices")
    assert topics.control == tuple(
        f"sluice.control.{name}" for name in ("plan", "policies", "registry", "devices", "instances", "acks", "status")
    )
    assert topics.dead_letters == "sluice.dead-letters"
    assert Topics("team.stage").queries("a") == "team.stage.app.a.queries"


@pytest.mark.parametrize("name", ["", "a.b", "a/b", "../a", "-a", "a b", "x" * 65, "ä", "a\n"])
def test_names_that_could_leave_their_place_are_refused(name: str) -> None:
    topics = Topics()
    for make in (topics.queries, topics.admitted, topics.work, topics.results):
        with pytest.raises(InvalidInputError, match="no valid name"):
            make(name)


@pytest.mark.parametrize("prefix", ["", ".", "a..b", "a.", "a/b", "a.b.c.d", "x" * 40])
def test_prefixes_are_checked(prefix: str) -> None:
    with pytest.raises(InvalidInputError, match="prefix"):
        Topics(prefix)


def test_a_topic_tells_its_app() -> None:
    topics = Topics("p.q")
    assert topics.app_of("p.q.app.a.queries") == "a" and topics.is_queries("p.q.app.a.queries")
    assert topics.app_of("p.q.app.a.results") == "a" and topics.is_results("p.q.app.a.results")
    for other in ("p.app.a.queries", "p.q.app.a.b.queries", "p.q.device.a.work", "p.q.app.a.other"):
        assert topics.app_of(other) is None


def test_a_work_topic_tells_its_device_and_no_other_topic_does() -> None:
    topics = Topics("p.q")
    assert topics.device_of(topics.work("gpu-0")) == "gpu-0"
    others = (topics.queries("a"), topics.devices_metrics, "p.device.d.work", "p.q.device.a.b.work", "p.q.device.d")
    assert [topics.device_of(other) for other in others] == [None] * len(others)


def test_what_is_created_covers_every_name_and_fits_the_broker() -> None:
    topics = Topics()
    specs = {spec.name: spec for spec in topics.specs(["a", "b"], ["cpu0"], partitions={"a": 4})}
    assert specs[topics.queries("a")].partitions == specs[topics.results("a")].partitions == 4
    assert specs[topics.queries("b")].partitions == specs[topics.work("cpu0")].partitions == 1
    assert all(specs[name].compacted and specs[name].retention_s is None for name in topics.control)
    assert not specs[topics.dead_letters].compacted and specs[topics.demand].partitions == 1
    for name in specs:
        check_topic_name(name)


def test_the_asyncapi_document_names_every_topic_and_its_references_resolve() -> None:
    topics = Topics("p")
    told = orjson.loads(orjson.dumps(document(topics, [APP], version="1.2.3")))
    addresses = {channel["address"] for channel in told["channels"].values()}
    created = {spec.name for spec in topics.specs(["digits"])}
    assert created <= addresses and "p.device.{device}.work" in addresses
    assert (told["asyncapi"], told["info"]["version"]) == ("3.0.0", "1.2.3")
    for operation in told["operations"].values():
        assert operation["channel"]["$ref"].removeprefix("#/channels/") in told["channels"]
    for channel in told["channels"].values():
        for message in channel["messages"].values():
            assert message["$ref"].removeprefix("#/components/messages/") in told["components"]["messages"]


def test_the_asyncapi_payload_schemas_take_what_the_codec_makes_and_refuse_what_it_refuses() -> None:
    messages = document(Topics(), [APP], version="1.2.3")["components"]["messages"]
    schema = messages["digits.query"]["payload"]
    tensor = {"name": "image", "datatype": "FP32", "shape": [2, 784], "data": [0.0] * 1568}
    checker = jsonschema.Draft202012Validator(schema)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert checker.is_valid({"id": "a", "inputs": [tensor], "parameters": {"latency_ms": 5, "class": "strict"}})
    assert not checker.is_valid({"inputs": []})
    assert not checker.is_valid({"inputs": [{**tensor, "shape": [5, 784]}]})
    assert not checker.is_valid({"inputs": [tensor], "parameters": {"accuracy": 2}})
