"""A broker with TLS, SCRAM and access rules: every stage as a user of its own, with no more rights than are listed."""

import asyncio
import json
import os
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import for_code
from aiokafka.protocol.admin import CreateAclsRequest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.sluice.registration.publish_registration import await_loaded
from sluicegate.sluice.settings.kafka_section import KafkaSection
from sluicegate.sluice.system.process_stages import stages_of
from sluicegate.sluice.system.system import System
from sluicegate.stages.runtime.supervisor import run_stages
from sluicegate.streams import connect
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.describe.acls import ROLES, rules
from sluicegate.streams.kafka.connection import connection
from sluicegate.streams.local_kafka.broker import LocalBroker
from sluicegate.streams.ports import TopicPartition
from sluicegate.streams.topics import Topics
from sluicegate_client import Client, Security
from tests.harness import PATIENCE_S, PIXELS, settings_for, toy_catalogue

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]

STAGES = ("planner", "admission", "router", "worker", "sink", "web", "http")
PREFIX = "guarded"
_RESOURCES = {"topic": 2, "group": 3, "cluster": 4, "transactional-id": 5}
_OPERATIONS = {
    "Read": 3,
    "Write": 4,
    "Create": 5,
    "Delete": 6,
    "Describe": 8,
    "DescribeConfigs": 10,
    "AlterConfigs": 11,
    "IdempotentWrite": 12,
}
_LITERAL, _PREFIXED, _ALLOW = 3, 4, 3


@pytest.fixture(scope="module")
def secured(kafka_url: str, tmp_path_factory: pytest.TempPathFactory, sluice_home: Path) -> Iterator[LocalBroker]:
    """A broker whose administrator is ``admin``, with a user a role, and the listed rules."""
    del kafka_url  # where the session's cannot be had, this is skipped as well
    users = ("admin", *(f"sluice-{role}" for role in ROLES))
    broker = LocalBroker(tmp_path_factory.mktemp("secured"), home=sluice_home, users=users)
    broker.start(within=120.0)
    try:
        asyncio.run(allow(broker))
        yield broker
    finally:
        broker.stop(within=1.0)


def section(broker: LocalBroker, user: str) -> KafkaSection:
    assert broker.security is not None
    return KafkaSection(
        protocol="SASL_SSL",
        ca_file=broker.security.ca_file,
        username=user,
        password_file=broker.security.password_file(user),
    )


def url_of(broker: LocalBroker) -> str:
    return broker.status().url or pytest.fail("it does not run")


async def allow(broker: LocalBroker) -> None:
    """Write the rules into the broker, as ``kafka-acls.sh`` does."""
    admin = AIOKafkaAdminClient(
        **connection(url_of(broker).removeprefix("kafka://"), section(broker, "admin").settings())
    )
    await admin.start()
    try:
        for rule in rules(Topics(PREFIX), ["toy"]):
            for operation in rule.operations:
                answer = await admin._send_request(
                    CreateAclsRequest(
                        _RESOURCES[rule.resource],
                        rule.name,
                        _PREFIXED if rule.prefixed else _LITERAL,
                        f"User:sluice-{rule.role}",
                        "*",
                        _OPERATIONS[operation],
                        _ALLOW,
                    )
                )
                for code, message in answer.creation_responses:
                    assert code == 0, (rule, for_code(code), message)
    finally:
        await admin.close()
        await asyncio.sleep(0.5)  # TLS says goodbye after close() has returned


@pytest.fixture(autouse=True)
async def goodbyes() -> AsyncIterator[None]:
    """TLS connections end after close() has returned: the loop must live on for a moment."""
    yield
    await asyncio.sleep(0.5)


@asynccontextmanager
async def stage(broker: LocalBroker, role: str, folder: Path, **more: Any) -> AsyncIterator[System]:
    """One role as its own user."""
    settings = settings_for(
        url_of(broker),
        folder,
        prefix=PREFIX,
        kafka=section(broker, f"sluice-{role}"),
        web={"port": 0},
        http={"port": 0},
        **more,
    )
    log = connect(settings.broker, kafka=settings.kafka.settings())
    producer = log.producer()
    await producer.start()
    (folder / role).mkdir()
    system = System(settings, toy_catalogue(slo=2.0), folder, log, producer, folder / role)
    await system.create_topics()
    stop = asyncio.Event()
    task = asyncio.create_task(run_stages(stages_of(system, [role]), stop))
    try:
        yield system
    finally:
        stop.set()
        await task
        await producer.stop()
        await log.close()


async def test_all_stages_serve_with_the_rights_that_are_listed_and_no_more(
    secured: LocalBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as running:
        systems = {role: await running.enter_async_context(stage(secured, role, tmp_path)) for role in STAGES}
        held = section(secured, "sluice-client").settings().security
        told = Security(**{field.name: getattr(held, field.name) for field in fields(held) if field.name != "oauth"})
        asking = Client(url_of(secured), prefix=PREFIX, security=told)
        async with asking as client, asyncio.timeout(PATIENCE_S):
            answers = []
            while not (answers and answers[-1].outcome.on_time):
                image = {"image": np.zeros((1, PIXELS), np.float32)}
                answers.append(await client.infer("toy", image, latency_ms=5000))
        while systems["sink"].telemetry.meters.value("sluice_outcomes_stored") < len(answers):
            await asyncio.sleep(0.1)
        assert "authoriz" not in caplog.text.lower()
        await forbidden(secured)
        log = connect(url_of(secured), kafka=section(secured, "sluice-client").settings())
        async with asyncio.timeout(PATIENCE_S):  # who may not read plans does not wait for them
            await await_loaded(log, Topics(PREFIX), ["toy"], within=10 * PATIENCE_S, say=print)
        await log.close()


async def test_the_rights_are_enough_for_what_settings_ask_besides(
    secured: LocalBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Admission by what plans sustain, exactly-once delivery, and a device that is lost."""
    more: dict[str, Any] = {"delivery": "exactly_once", "admission": {"policy": "sustainable"}}
    topics = Topics(PREFIX)
    log = connect(url_of(secured), kafka=section(secured, "sluice-planner").settings())
    async with AsyncExitStack() as running:
        for role in ("planner", "admission", "router"):
            await running.enter_async_context(stage(secured, role, tmp_path, **more))
        held = section(secured, "sluice-client").settings().security
        told = Security(**{field.name: getattr(held, field.name) for field in fields(held) if field.name != "oauth"})
        asking = Client(url_of(secured), prefix=PREFIX, security=told)
        async with asyncio.timeout(PATIENCE_S):
            async with stage(secured, "worker", tmp_path, **more) as system, asking as client:
                answers = []
                while not (answers and answers[-1].outcome.on_time):
                    image = {"image": np.zeros((1, PIXELS), np.float32)}
                    answers.append(await client.infer("toy", image, latency_ms=5000))
            work = TopicPartition(topics.work(system.devices[0].name), 0)
            while await log.admin().committed(topics.swept_group, work) is None:
                await asyncio.sleep(0.1)
    await log.close()
    assert "authoriz" not in caplog.text.lower()


async def forbidden(broker: LocalBroker) -> None:
    """An application can write neither results nor plans."""
    log = connect(url_of(broker), kafka=section(broker, "sluice-client").settings())
    producer = log.producer()
    await producer.start()
    topics = Topics(PREFIX)
    for topic in (topics.results("toy"), topics.plan, topics.admitted("toy")):
        with pytest.raises(Exception, match=r"(?i)authoriz"):
            await (await producer.send(topic, b"forged", key=b"k"))
    await producer.stop()
    await log.close()


@pytest.mark.parametrize("wrong", [{"password": "letmein-7431"}, {"protocol": "PLAINTEXT"}, {"username": "nobody"}])
async def test_who_may_not_in_is_told_in_one_line_without_the_secret(
    secured: LocalBroker, wrong: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert secured.security is not None
    right = section(secured, "sluice-client").model_dump()
    given = KafkaSection(**{**right, "password": None, **wrong})
    log = connect(url_of(secured), kafka=KafkaSettings(request_timeout=3.0, security=given.settings().security))
    with pytest.raises(ConfigurationError) as told:
        await log.admin().topics()
    await log.close()
    assert "kafka.protocol" in str(told.value) and "\n" not in str(told.value)
    secret = wrong.get("password") or secured.security.password("sluice-client")
    assert secret not in str(told.value) + caplog.text + repr(given) + repr(given.settings())


async def test_a_process_tells_no_secret_however_much_it_logs(secured: LocalBroker, tmp_path: Path) -> None:
    assert secured.security is not None
    save_catalogue(tmp_path / "catalogue", toy_catalogue(), {})
    secret = secured.security.password("admin")
    given = {
        "SLUICE_BROKER": url_of(secured),
        "SLUICE_PREFIX": "told",
        "SLUICE_CATALOGUE": str(tmp_path / "catalogue"),
        "SLUICE_RUNS": str(tmp_path / "runs"),
        "SLUICE_KAFKA__PROTOCOL": "SASL_SSL",
        "SLUICE_KAFKA__CA_FILE": str(secured.security.ca_file),
        "SLUICE_KAFKA__USERNAME": "admin",
        "SLUICE_KAFKA__PASSWORD": secret,
        "SLUICE_METRICS__PORT": "0",
        "SLUICE_METRICS__TOKEN": "metrics-secret-1",
        "SLUICE_LOG__FORMAT": "json",
        "SLUICE_LOG__LEVEL": "debug",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sluicegate.sluice.main", "up", "sink", "--verbose"),
        env={**os.environ, **given},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    said = b""
    async with asyncio.timeout(PATIENCE_S):
        while b"metrics on http" not in said:
            said += await process.stdout.readline()
    await asyncio.sleep(1.0)
    process.terminate()
    said += await process.stdout.read()
    assert await process.wait() == 0
    lines = [json.loads(line) for line in said.splitlines() if line.startswith(b"{")]
    assert {"time", "level", "logger", "message"} <= set(lines[0])
    assert any(line["logger"].startswith("aiokafka") and line["level"] == "debug" for line in lines)
    assert secret.encode() not in said and b"metrics-secret-1" not in said
    assert secret.encode() not in written_in(tmp_path)


def written_in(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_secrets_on_disk_are_their_owners_alone(secured: LocalBroker) -> None:
    assert secured.security is not None
    private = [secured.security.password_file(user) for user in secured.security.users]
    private += [secured.security.folder / name for name in ("server.pem", "ca.key", "server.key")]
    private.append(secured.security.folder.parent / "server.properties")
    assert {stat.S_IMODE(file.stat().st_mode) for file in private} == {0o600}
    assert "password" not in repr(secured.status())
