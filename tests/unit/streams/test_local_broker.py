"""``sluice broker``: what it says when it cannot start, and that it finds its own process again."""

import json
import socket
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sluicegate.domain.errors import ConfigurationError
from sluicegate.sluice.commands.running import broker as command
from sluicegate.streams.local_kafka.broker import LocalBroker
from sluicegate.streams.local_kafka.jars import ensure_jars, find_java

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


def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalBroker:
    """A broker with jars that are none, and a java that ends at once."""
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "java", "17.0.1").parent.parent))
    home = tmp_path / "home"
    monkeypatch.setattr("sluicegate.streams.local_kafka.broker.ensure_jars", lambda _home, _progress: home)
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


def test_a_process_id_that_is_anothers_by_now_is_not_taken_for_the_server(tmp_path: Path) -> None:
    (tmp_path / "broker.json").write_text(json.dumps({"port": 1, "pid": 1}))
    assert not LocalBroker(tmp_path, home=tmp_path).status().running
    assert not LocalBroker(tmp_path, home=tmp_path).stop()
    (tmp_path / "broker.json").write_text("not json")
    assert not LocalBroker(tmp_path, home=tmp_path).status().running


@pytest.mark.kafka
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
