"""Reference pages that commands write: they are what the commands print, and the commands take what they should."""

import json
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from sluicegate.profiles.catalogue.registered_apps import Registered
from sluicegate.sluice.commands import topics
from sluicegate.sluice.commands.describing import describe
from tests.models.text_models import write_words

ROOT = Path(__file__).resolve().parents[3] / "docs" / "reference"
APPS = ("--app", "digits", "--app", "signals")
app = typer.Typer()
for module in (describe, topics):
    module.register(app)


def said(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(
        app,
        list(arguments) if arguments[0] == "topics" else ["describe", *arguments],
        env={"SLUICE_BROKER": "memory://"},
    )
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


@pytest.mark.parametrize(
    ("page", "command"),
    [
        ("asyncapi.yaml", ("asyncapi", *APPS)),
        ("acls.md", ("acls", *APPS, "--markdown")),
        ("topics.md", ("topics", *APPS, "--device", "cpu0", "--device", "cpu1", "--markdown")),
        ("metrics.md", ("metrics", "--markdown")),
    ],
)
def test_a_reference_page_is_what_its_command_prints(page: str, command: tuple[str, ...]) -> None:
    assert (ROOT / page).read_text() == said(*command), (
        f"write it again: sluice (describe) {' '.join(command)} > docs/reference/{page}"
    )


def test_the_document_tells_where_the_broker_is_and_how_it_is_secured(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    (tmp_path / "password").write_text("secret\n")
    file.write_text(
        "broker: kafka://broker.example:9093\nprefix: mine\n"
        f"kafka: {{protocol: SASL_SSL, username: u, password_file: {tmp_path / 'password'}}}\n"
    )
    result = CliRunner().invoke(app, ["describe", "asyncapi", "--app", "digits", "--settings", str(file)])
    told = yaml.safe_load(result.stdout)
    assert told["servers"]["kafka"] == {
        "host": "broker.example:9093",
        "protocol": "kafka-secure",
        "security": [{"type": "scramSha512"}],
    }
    assert "mine.app.digits.queries" in {channel["address"] for channel in told["channels"].values()}
    assert "secret" not in result.output


def test_rules_are_printed_for_the_brokers_own_tool() -> None:
    lines = said("acls", "--app", "mine", "--role", "client", "--user", "shop", "--shell").splitlines()
    assert all(line.startswith("kafka-acls.sh ") and "User:shop-client" in line for line in lines)
    assert any("--operation Write --topic sluice.app.mine.queries" in line for line in lines)
    assert not any("control.plan" in line for line in lines)


def test_only_the_planner_writes_plans_and_only_applications_and_who_replays_write_queries() -> None:
    found = json.loads(said("acls", "--app", "mine", "--json"))["rules"]
    writers: dict[str, set[str]] = {}
    for rule in found:
        if "Write" in rule["operations"]:
            writers.setdefault(rule["name"], set()).add(rule["role"])
    assert writers["sluice.control.plan"] == {"planner"}
    assert writers["sluice.app.mine.queries"] == {"client", "http", "operator"}
    assert writers["sluice.app.mine.results"] == {"admission", "router", "worker", "planner"}


@pytest.mark.parametrize("command", [("topics",), ("acls",), ("asyncapi",)])
def test_where_no_app_is_named_those_that_are_served_are_described(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    assert "app.digits.queries" in said(*command, "--json")
    write_words(tmp_path / "registered")
    told = said(*command, "--json")
    assert "app.words.queries" in told and "digits" not in told
    Registered(tmp_path).serve_demo(True)
    told = said(*command, "--json")
    assert "app.words.queries" in told and "app.digits.queries" in told


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("asyncapi", "--app", "nobody"), "app 'nobody' is unknown"),
        (("acls", "--app", "a", "--role", "king"), "role 'king' is unknown"),
        (("topics", "--app", "a", "--check"), "give --broker kafka://host:port"),
        (("topics", "--app", "a", "--create", "--prune"), "give one of them"),
    ],
)
def test_what_cannot_be_printed_is_told_in_one_line(command: tuple[str, ...], told: str) -> None:
    message = said(*command, code=2)
    assert told in " ".join(message.split())
