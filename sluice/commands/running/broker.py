"""``sluice broker``: an Apache Kafka of one's own on this machine, for those without Docker."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sluicegate.sluice.console import EXIT_FAILED, JsonOption, err, one_line_errors, out, print_json
from sluicegate.sluice.settings.settings import load
from sluicegate.streams.local_kafka.broker import LocalBroker, LocalBrokerStatus, Progress
from sluicegate.streams.local_kafka.security import LocalSecurity

broker = typer.Typer(
    name="broker",
    help="Start, stop and look at a local Apache Kafka.",
    no_args_is_help=True,
)

DirOption = Annotated[
    Path | None, typer.Option("--dir", help="Folder of its data and settings. Default: broker/ in $SLUICE_HOME.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(broker)


@broker.command()
def start(
    folder: DirOption = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            help="1, 3 or 5; with more than one, topics have three copies. Default: what the folder has, else 1."
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            help="Port on 127.0.0.1, further nodes behind it; 0 takes the folder's last ones or free ones.",
        ),
    ] = 9092,
    heap_mb: Annotated[
        int | None,
        typer.Option(min=256, max=65536, help="Memory for Java, MiB. Default: 512 for one node, 256 for each of more."),
    ] = None,
    wait: Annotated[float, typer.Option(min=1, max=600, help="Seconds to wait for it.")] = 60.0,
    user: Annotated[
        list[str] | None,
        typer.Option(
            "--user", help="TLS and SCRAM with this user, the first of them an administrator; may be given again."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Start it, fetching Apache Kafka's jars the first time, and wait until it serves."""
    with one_line_errors(), _spinner(quiet=as_json) as progress:
        local = _of(folder, heap_mb=heap_mb, users=user or (), nodes=nodes)
        status = local.start(port=port, within=wait, progress=progress)
    if port and status.port != port:
        told = f"it runs already, on port {status.port}; for port {port} stop it first, or name another --dir"
        err.print(told, highlight=False, soft_wrap=True)
    _show(status, as_json=as_json, security=local.security)


@broker.command()
def stop(
    folder: DirOption = None,
    wait: Annotated[float, typer.Option(min=0, max=600, help="Seconds before it is ended by force.")] = 20.0,
    as_json: JsonOption = False,
) -> None:
    """Stop it, all of its nodes. Its data stays."""
    with one_line_errors():
        local = _of(folder)
        stopped = local.stop(within=wait)
    if as_json:
        print_json({"stopped": stopped, **asdict(local.status())})
    else:
        out.print("stopped" if stopped else "it does not run", highlight=False)


@broker.command()
def status(folder: DirOption = None, as_json: JsonOption = False) -> None:
    """Say whether it runs, and where. Exit code 1 where it, or a node of it, does not."""
    with one_line_errors():
        found = _of(folder).status()
    _show(found, as_json=as_json)
    if not found.running:
        raise typer.Exit(EXIT_FAILED)


def _of(
    folder: Path | None, *, heap_mb: int | None = None, users: Sequence[str] = (), nodes: int | None = None
) -> LocalBroker:
    home = load().home
    return LocalBroker(folder or home / "broker", home=home, heap_mb=heap_mb, users=users, nodes=nodes)


def _show(found: LocalBrokerStatus, *, as_json: bool, security: LocalSecurity | None = None) -> None:
    settings = {} if security is None else _settings_for(security)
    if as_json:
        print_json({**asdict(found), **({} if security is None else {"environment": settings})})
        return
    running = [node for node in found.nodes if node.running]
    if not running:
        out.print(f"it does not run ({found.folder})", highlight=False)
        return
    processes = ", ".join(str(node.pid) for node in running)
    named = f"process{'es' * (len(running) > 1)} {processes}"
    out.print(f"Kafka {found.version} serves {found.url} ({named}, {found.folder})", highlight=False, soft_wrap=True)
    if found.missing:
        lacks = ", ".join(f"node {node}" for node in found.missing)
        out.print(f"{lacks} of {len(found.nodes)} is down: `sluice broker start` starts it again", highlight=False)
    if settings:
        given = " ".join(f"{name}={shlex.quote(value)}" for name, value in settings.items())
        out.print(f"export {given}", markup=False, highlight=False, soft_wrap=True)


def _settings_for(security: LocalSecurity) -> Mapping[str, str]:
    """What the environment says to those who connect as the first user; the password lies in a file."""
    first = security.users[0]
    return {
        "SLUICE_KAFKA__PROTOCOL": "SASL_SSL",
        "SLUICE_KAFKA__CA_FILE": str(security.ca_file),
        "SLUICE_KAFKA__USERNAME": first,
        "SLUICE_KAFKA__PASSWORD_FILE": str(security.password_file(first)),
    }


@contextmanager
def _spinner(*, quiet: bool) -> Iterator[Progress]:
    if quiet:
        yield lambda _: None
        return
    with err.status("Apache Kafka") as spinner:
        yield lambda step: spinner.update(f"Apache Kafka: {step}")
