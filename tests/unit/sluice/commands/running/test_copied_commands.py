"""What commands print for their readers to copy: a shell takes it as it was meant, whatever is in paths and names."""

import asyncio
import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.query import Query
from sluicegate.simulator.scenario import read_scenario
from sluicegate.sluice.commands.reading import explain
from sluicegate.sluice.commands.running.broker import _show
from sluicegate.sluice.offline.problem_file import read_question
from sluicegate.streams.local_kafka.broker import LocalBrokerStatus, NodeStatus
from sluicegate.streams.local_kafka.security import LocalSecurity
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import TopicSpec
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics

EXAMPLES = Path(__file__).resolve().parents[5] / "examples"


def test_what_a_secured_broker_says_to_export_is_taken_whole_and_is_in_its_json_without_the_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "Ann's broker"
    security = LocalSecurity(folder, ["ann", "bob"])
    security.folder.mkdir(parents=True)
    security.password_file("ann").write_text("s3cret\n")
    wanted = {
        "SLUICE_KAFKA__PROTOCOL": "SASL_SSL",
        "SLUICE_KAFKA__CA_FILE": str(security.ca_file),
        "SLUICE_KAFKA__USERNAME": "ann",
        "SLUICE_KAFKA__PASSWORD_FILE": str(security.password_file("ann")),
    }
    node = NodeStatus(node=1, running=True, port=9093, pid=7)
    status = LocalBrokerStatus(running=True, folder=str(folder), url="kafka://127.0.0.1:9093", nodes=(node,))
    _show(status, as_json=False, security=security)
    export, *given = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert export == "export" and dict(one.split("=", 1) for one in given) == wanted
    _show(status, as_json=True, security=security)
    told = capsys.readouterr().out
    assert json.loads(told)["environment"] == wanted and "s3cret" not in told
    _show(status, as_json=True)
    assert "environment" not in json.loads(capsys.readouterr().out)


def test_a_file_that_another_command_reads_is_named_as_a_shell_takes_it(tmp_path: Path) -> None:
    scenario, problem = tmp_path / "my scenario.yaml", tmp_path / "my problem.yaml"
    scenario.write_bytes((EXAMPLES / "scenarios" / "small.yaml").read_bytes())
    problem.write_bytes((EXAMPLES / "problems" / "two-apps.yaml").read_bytes())
    with pytest.raises(ConfigurationError) as refused:
        read_question(scenario)
    assert shlex.split(str(refused.value).partition("; ")[2])[:3] == ["sluice", "simulate", str(scenario)]
    with pytest.raises(ConfigurationError) as refused:
        read_scenario(problem, {})
    assert shlex.split(str(refused.value).partition("; ")[2])[:4] == ["sluice", "plan", "--problem", str(problem)]


def test_sources_to_choose_from_are_told_as_a_shell_takes_them() -> None:
    async def asked() -> None:
        broker = MemoryBroker()
        await broker.admin().create_topics([TopicSpec(name=Topics().results("toy"))])
        producer = broker.producer()
        await producer.start()
        query = Query(id="q", app="toy", arrival=1.0, deadline=2.0)
        for source in sources:
            outcome = Outcome.of(replace(query, source=source), OutcomeKind.EXPIRED, 1.5)
            message = codec.encode_outcome(outcome, [])
            await (await producer.send(Topics().results("toy"), message.value, headers=message.headers))
        await explain._find(broker, Topics(), "q", None, None)

    sources = ['/ann\'s "home"', "/bob"]
    with pytest.raises(InvalidInputError) as refused:
        asyncio.run(asked())
    told = str(refused.value).partition("give ")[2].split("; ")
    assert [shlex.split(one)[-1] for one in told] == sources
