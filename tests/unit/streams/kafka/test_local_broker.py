"""``sluice broker``: what it says when it cannot start, and that it finds its own process again."""

import json
import re
import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from sluicegate.domain.errors import ConfigurationError
from sluicegate.sluice.commands.running import broker as command
from sluicegate.streams.local_kafka.broker import LocalBroker
from sluicegate.streams.local_kafka.jars import ensure_jars, find_java
from sluicegate.streams.local_kafka.node import LocalNode
from sluicegate.streams.local_kafka.security import LocalSecurity

app = typer.Typer()
command.register(app)
run = CliRunner()


def invoke(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and error of ``sluice broker …``."""
    result = run.invoke(app, ["broker", *arguments])
    return result.exit_code, result.stdout, result.stderr


def fake_java(folder: Path, version: str) -> Path:
    """A java that tells this version and does nothing else."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    java.chmod(0o755)
    return java


def test_a_folder_in_which_nothing_runs_says_so(tmp_path: Path) -> None:
    code, out, _ = invoke("status", "--dir", str(tmp_path), "--json")
    assert code == 1 and json.loads(out)["running"] is False
    code, out, _ = invoke("stop", "--dir", str(tmp_path), "--json")
    assert code == 0 and json.loads(out)["stopped"] is False


def test_without_java_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    code, _, err = invoke("start", "--dir", str(tmp_path / "b"), "--port", "0")
    assert code == 2 and "java is missing" in err and err.count("\n") == 1


def test_an_old_java_is_refused_by_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = fake_java(tmp_path / "old", "1.8.0_392")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(ConfigurationError, match="is Java 8: Kafka needs 17"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "new", "21.0.2").parent.parent))
    assert find_java() != str(java)


@pytest.mark.parametrize("hangs", ["java", "its storage tool", "openssl", "mvn"])
def test_a_program_that_does_not_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: str) -> None:
    name = "java" if hangs == "its storage tool" else hangs
    program = tmp_path / "bin" / name
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    for module, bound in (
        ("jars", "_VERSION_TIMEOUT"),
        ("jars", "_MAVEN_TIMEOUT"),
        ("node", "_FORMAT_TIMEOUT"),
        ("security", "_OPENSSL_TIMEOUT"),
    ):
        monkeypatch.setattr(f"sluicegate.streams.local_kafka.{module}.{bound}", 0.25)
    node = LocalNode(1, tmp_path / "node", "Kafka")
    begin, told = {
        "java": (find_java, f"{program} does not tell its version"),
        "its storage tool": (
            lambda: node.format(str(program), tmp_path, []),
            f"Kafka's storage in {tmp_path}/node was not formatted",
        ),
        "openssl": (LocalSecurity(tmp_path, ["owner"]).prepare, "openssl req did not end"),
        "mvn": (lambda: ensure_jars(tmp_path), "mvn did not fetch Kafka's jars"),
    }[hangs]
    with pytest.raises(ConfigurationError, match=f"^{told} within 0.25 s; try again$"):
        begin()


def test_without_maven_and_jars_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="mvn is missing"):
        ensure_jars(tmp_path)


def test_what_maven_complains_of_is_told_and_nothing_half_done_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text("#!/bin/sh\necho '[ERROR] no such artifact'\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{maven.parent}:/usr/bin:/bin")
    with pytest.raises(ConfigurationError, match="no such artifact"):
        ensure_jars(tmp_path / "home")
    assert list((tmp_path / "home" / "kafka").iterdir()) == []


def test_of_those_that_miss_the_jars_at_once_one_fetches_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text(
        f"""#!/bin/sh
echo asked >> {tmp_path}/asked
sleep 0.2
for argument in "$@"; do case $argument in -DoutputDirectory=*) made=${{argument#*=}};; esac; done
mkdir -p "$made" && touch "$made/kafka_2.13.jar"
"""
    )
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{maven.parent}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    home = Path("home")  # Maven reads paths as seen from its own folder
    with ThreadPoolExecutor(4) as some:
        folders = list(some.map(lambda _: ensure_jars(home), range(4)))
    assert folders[0].is_absolute()
    assert (tmp_path / "asked").read_text().split() == ["asked"]
    assert {folder.name for folder in folders} == {p.name for p in (home / "kafka").iterdir()}
    assert [p.name for p in folders[0].iterdir()] == ["kafka_2.13.jar"]


def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalBroker:
    """A broker with jars that are none, and a java that ends at once."""
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "java", "17.0.1").parent.parent))
    home = tmp_path / "home"
    monkeypatch.setattr("sluicegate.streams.local_kafka.broker.ensure_jars", lambda *_: home)
    return LocalBroker(tmp_path / "broker", home=home)


def test_a_port_that_is_taken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = prepared(tmp_path, monkeypatch)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port} is taken"):
            broker.start(port=port)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(tmp_path, monkeypatch)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="choose a writable folder"):
        LocalBroker(tmp_path / "file" / "b", home=tmp_path).start()


def test_a_server_that_ends_at_once_is_told_and_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = prepared(tmp_path, monkeypatch)
    with pytest.raises(ConfigurationError, match="Kafka ended at once"):
        broker.start(within=10.0)
    status = broker.status()
    assert not status.running and status.port is not None
    assert "pid" not in json.loads((tmp_path / "broker" / "broker.json").read_text())


@pytest.mark.parametrize(
    ("log", "free", "told"),
    [
        (
            "INFO begins\nINFO goes on\n",
            5 << 20,
            "5 MiB are free on the disk of .*; make room, or choose another --dir",
        ),
        ("INFO begins\nx ERROR broken\nINFO ends\n", 5 << 20, "x ERROR broken"),
        ("INFO begins\nINFO goes on\n", 5 << 30, "INFO goes on"),
        ("", 5 << 30, "it said nothing"),
    ],
)
def test_why_a_server_ended_is_its_first_error_or_a_full_disk_or_its_last_word(
    log: str, free: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = LocalNode(1, tmp_path, "Kafka")
    server.log_file.write_text(log)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    assert re.fullmatch(told, server._last_error())


def test_a_process_id_that_is_anothers_by_now_is_not_taken_for_the_server(tmp_path: Path) -> None:
    (tmp_path / "broker.json").write_text(json.dumps({"port": 1, "pid": 1}))
    assert not LocalBroker(tmp_path, home=tmp_path).status().running
    assert not LocalBroker(tmp_path, home=tmp_path).stop()
    (tmp_path / "broker.json").write_text("not json")
    assert not LocalBroker(tmp_path, home=tmp_path).status().running


SERVER = """\
#!/bin/sh
case "$*" in
  *-version*) echo 'openjdk version "17.0.1" 2025-01-01' >&2 ;;
  *StorageTool*) for each; do case "$last" in -c) folder="${each%/*}" ;; esac; last="$each"; done
    echo "$*" > "$folder/formatted"; touch "$folder/data/meta.properties" ;;
  *) echo "[now] INFO Kafka Server started"; while :; do sleep 0.05; done ;;
esac
"""


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Java plays a server that starts at once and ends when it is asked to. Gives the folder of a broker."""
    java = fake_java(tmp_path / "java", "17.0.1")
    java.write_text(SERVER)
    monkeypatch.setenv("JAVA_HOME", str(java.parent.parent))
    monkeypatch.setattr("sluicegate.streams.local_kafka.broker.ensure_jars", lambda *_: tmp_path)
    return tmp_path / "broker"


def properties(broker: LocalBroker, node: int) -> dict[str, str]:
    """What a node was started with."""
    lines = (broker.nodes[node].folder / "server.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_three_nodes_vote_together_and_keep_copies_of_each_others_records(servers: Path, tmp_path: Path) -> None:
    broker = LocalBroker(servers, home=tmp_path, nodes=3)
    try:
        status = broker.start(within=20.0)
        assert status.running and [node.node for node in status.nodes] == [1, 2, 3] and status.missing == ()
        ports = [node.port for node in status.nodes]
        assert status.url == "kafka://" + ",".join(f"127.0.0.1:{port}" for port in ports) and len(set(ports)) == 3
        told = [properties(broker, node) for node in (1, 2, 3)]
        assert [each["node.id"] for each in told] == ["1", "2", "3"]
        voters = {each["controller.quorum.voters"] for each in told}
        controllers = [each["listeners"].rpartition(":")[2] for each in told]
        assert voters == {",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(controllers, 1))}
        for each in told:
            assert each["default.replication.factor"] == each["transaction.state.log.replication.factor"] == "3"
            assert each["min.insync.replicas"] == each["transaction.state.log.min.isr"] == "2"
            assert each["offsets.topic.replication.factor"] == "3"
        formatted = [(broker.nodes[node].folder / "formatted").read_text() for node in (1, 2, 3)]
        assert len({word for line in formatted for word in line.split() if word.startswith("--cluster-id=")}) == 1
        assert not any("--standalone" in line for line in formatted)
    finally:
        assert broker.stop()
    assert LocalBroker(servers, home=tmp_path).status().missing == (1, 2, 3)


def test_one_node_copies_nothing_and_is_its_own_quorum(servers: Path, tmp_path: Path) -> None:
    broker = LocalBroker(servers, home=tmp_path)
    try:
        broker.start(within=20.0)
        told = properties(broker, 1)
        assert told["default.replication.factor"] == told["min.insync.replicas"] == "1"
        assert "controller.quorum.voters" not in told
        assert "--standalone" in (servers / "formatted").read_text()
    finally:
        broker.stop()


def test_a_node_that_died_is_told_of_and_started_again_where_it_was(servers: Path, tmp_path: Path) -> None:
    broker = LocalBroker(servers, home=tmp_path, nodes=3)
    try:
        before = broker.start(within=20.0)
        broker.nodes[2].end(within=5.0)
        code, out, _ = invoke("status", "--dir", str(servers), "--json")
        told = json.loads(out)
        assert code == 1 and not told["running"] and [node["running"] for node in told["nodes"]] == [True, False, True]
        assert told["url"] == before.url  # clients find the others on it
        _, out, _ = invoke("status", "--dir", str(servers))
        assert "node 2 of 3 is down" in out
        after = LocalBroker(servers, home=tmp_path).start(port=4242, within=20.0)
        assert after.running and after.url == before.url
        assert after.nodes[0] == before.nodes[0] and after.nodes[2] == before.nodes[2]
        assert after.nodes[1].pid != before.nodes[1].pid
        code, out, _ = invoke("stop", "--dir", str(servers), "--json")
        stopped = json.loads(out)
        assert code == 0 and stopped["stopped"] and not any(node["running"] for node in stopped["nodes"])
        assert broker.status().url is None
    finally:
        broker.stop()


def test_a_broker_that_runs_on_another_port_than_is_asked_for_says_so(servers: Path) -> None:
    try:
        code, first, said = invoke("start", "--dir", str(servers), "--port", "0")
        assert code == 0 and "already" not in said
        port = json.loads(invoke("status", "--dir", str(servers), "--json")[1])["port"]
        code, again, said = invoke("start", "--dir", str(servers), "--port", str(port + 1))
        assert (code, again) == (0, first)
        assert f"it runs already, on port {port}; for port {port + 1} stop it first" in said
        assert "already" not in invoke("start", "--dir", str(servers), "--port", str(port))[2]
    finally:
        invoke("stop", "--dir", str(servers))


def test_others_are_told_the_ports_of_who_forwards(servers: Path, tmp_path: Path) -> None:
    broker = LocalBroker(servers, home=tmp_path, nodes=3, told=lambda port: port + 20_000)
    try:
        broker.start(within=20.0)
        for number, node in broker.nodes.items():
            ports = node.ports
            assert ports is not None
            told = properties(broker, number)
            assert told["advertised.listeners"].endswith(f":{ports.clients + 20_000}")
            assert f"{number}@127.0.0.1:{ports.controllers + 20_000}" in told["controller.quorum.voters"]
            assert told["listeners"].endswith(f":{ports.controllers}")
    finally:
        broker.stop()


def test_a_broker_keeps_the_number_of_nodes_that_it_began_with(servers: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="give 1, 3 or 5"):
        LocalBroker(servers, home=tmp_path, nodes=2)
    broker = LocalBroker(servers, home=tmp_path, nodes=3)
    broker.start(within=20.0)
    broker.stop()
    code, _, err = invoke("start", "--dir", str(servers), "--nodes", "1", "--port", "0")
    assert code == 2 and "holds a broker of 3 nodes, not of 1" in err and err.count("\n") == 1
    assert len(LocalBroker(servers, home=tmp_path).nodes) == 3
    alone = LocalBroker(tmp_path / "alone", home=tmp_path)
    alone.start(within=20.0)
    alone.stop()
    with pytest.raises(ConfigurationError, match="holds a broker of 1 node, not of 3"):
        LocalBroker(tmp_path / "alone", home=tmp_path, nodes=3)


@contextmanager
def taken_behind_a_free_one() -> Iterator[int]:
    """A port that is listened at, where nobody is given the one before it unasked."""
    for port in range(20_001, 32_000, 2):
        with socket.socket() as other, socket.socket() as before:
            try:
                before.bind(("127.0.0.1", port - 1))
                other.bind(("127.0.0.1", port))
            except OSError:
                continue
            before.close()
            other.listen()
            yield port
            return


def test_a_node_whose_port_is_taken_is_named_and_none_is_started(servers: Path, tmp_path: Path) -> None:
    broker = LocalBroker(servers, home=tmp_path, nodes=3)
    with taken_behind_a_free_one() as port, pytest.raises(ConfigurationError, match=f"port {port} is taken"):
        broker.start(port=port - 1)
    assert broker.status().missing == (1, 2, 3)


@pytest.mark.kafka
@pytest.mark.thorough
def test_it_listens_on_loopback_only_and_keeps_its_data(kafka_url: str, tmp_path: Path, sluice_home: Path) -> None:
    del kafka_url  # where the session's cannot be had, this is skipped as well
    broker = LocalBroker(tmp_path, home=sluice_home)
    first = broker.start(within=120.0)
    try:
        assert broker.start() == first
        listening = _listening(first.pid or 0)
        assert listening and listening <= {"127.0.0.1", "::ffff:127.0.0.1"}
        assert broker.stop() and not broker.status().running
        again = broker.start(within=120.0)
        assert again.port == first.port and again.pid != first.pid
    finally:
        broker.stop()


def _listening(pid: int) -> set[str]:
    """Addresses that sockets of a process listen on."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                raw = bytes.fromhex(fields[1].split(":")[0])
                words = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
                found.add(socket.inet_ntop(family, words))
    return found
