"""``sluice topics``: what topics a system has, whether the broker has them so, and making it so."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.plan import Plan
from sluicegate.sluice.audit.result_log import read_results
from sluicegate.sluice.catalogue.documented_apps import app_names, topic_specs
from sluicegate.sluice.commands.given_options import refuse_given
from sluicegate.sluice.console import EXIT_FAILED, JsonOption, one_line_errors, out, print_json
from sluicegate.sluice.registration.registry_topic import served_apps
from sluicegate.sluice.settings.settings import Settings, load
from sluicegate.streams.describe.acls import rules
from sluicegate.streams.describe.strimzi import kafka_topics, kafka_users
from sluicegate.streams.describe.topic_listing import TopicInfo, as_markdown, listed
from sluicegate.streams.kafka.broker import KafkaBroker
from sluicegate.streams.kafka.topic_configs import Difference, differences
from sluicegate.streams.ports import TopicPartition, TopicSpec
from sluicegate.streams.records import control
from sluicegate.streams.topics import Topics


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(topics)


@dataclass(frozen=True, slots=True)
class Found:
    """What a broker has. ``unserved``: topics of apps and devices that this system does not have, where looked for."""

    specs: tuple[TopicSpec, ...]
    differences: tuple[Difference, ...]
    unserved: tuple[str, ...]


def topics(
    context: typer.Context,
    app: Annotated[list[str] | None, typer.Option("--app", help="For this app; may be given again.")] = None,
    device: Annotated[list[str] | None, typer.Option("--device", help="For this device; may be given again.")] = None,
    broker: Annotated[str | None, typer.Option(help="kafka://host:port")] = None,
    prefix: Annotated[str | None, typer.Option(help="Topic prefix.")] = None,
    create: Annotated[bool, typer.Option("--create", help="Create those that do not exist.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Compare with the broker. Exit 1 where one is missing or otherwise.")
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Create and configure them as the settings say.")] = False,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="List topics of apps and devices that nobody serves; with --yes delete them."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --prune: delete, with all that is in them.")] = False,
    strimzi: Annotated[
        str | None, typer.Option(metavar="CLUSTER", help="Print KafkaTopic and KafkaUser resources of this cluster.")
    ] = None,
    user: Annotated[str, typer.Option(help="With --strimzi: users are named <user>-<role>.")] = "sluice",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference page.")] = False,
    settings: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the topics of a system, compare them with a broker, make them so."""
    with one_line_errors():
        chosen = load(settings, broker=broker, prefix=prefix)
        if sum((create, check, apply, prune, strimzi is not None, markdown)) > 1:
            raise ConfigurationError("--create, --check, --apply, --prune, --strimzi, --markdown: give one of them")
        if not prune:
            refuse_given(context, "without --prune", ["yes"])
        if strimzi is None:
            refuse_given(context, "without --strimzi CLUSTER", ["user"])
        if create or check or apply or prune:
            asked = _Asked(create, apply, prune, yes)
            failed = asyncio.run(_on_broker(chosen, app or (), device or (), asked, as_json=as_json))
        else:
            _describe(chosen, app or (), device or (), strimzi, user, markdown=markdown, as_json=as_json)
            failed = False
    if failed:
        raise typer.Exit(EXIT_FAILED)


@dataclass(frozen=True, slots=True)
class _Asked:
    create: bool
    apply: bool
    prune: bool
    yes: bool


async def _on_broker(
    settings: Settings, apps: Sequence[str], devices: Sequence[str], asked: _Asked, *, as_json: bool
) -> bool:
    """Look, do what was asked, tell; whether something is left to do."""
    if not settings.broker.startswith("kafka://"):
        raise ConfigurationError("topics are compared with Apache Kafka: give --broker kafka://host:port")
    broker = KafkaBroker(settings.broker.removeprefix("kafka://"), settings.kafka.settings())
    deleted: tuple[str, ...] = ()
    try:
        found = await _look(broker, settings, apps, devices, prune=asked.prune)
        if asked.create:
            await broker.admin().create_topics(found.specs)
        elif asked.apply:
            await _apply(broker, found)
        elif asked.prune and asked.yes and found.unserved:
            deleted = found.unserved
            await broker.admin().delete(deleted)
        if asked.create or asked.apply or (asked.prune and asked.yes):
            found = await _look(broker, settings, apps, devices, prune=asked.prune)
    finally:
        await broker.close()
    if asked.prune:
        _tell_unserved(found, deleted, as_json=as_json)
        return False
    _tell_differences(found, as_json=as_json)
    if asked.create:
        return any(one.has is None for one in found.differences)
    return bool(found.differences)


async def _look(
    broker: KafkaBroker, settings: Settings, apps: Sequence[str], devices: Sequence[str], *, prune: bool
) -> Found:
    topics = Topics(settings.prefix)
    served = await served_apps(broker, topics)
    names = tuple(dict.fromkeys((*apps, *sorted(served)))) or app_names(settings, ())
    specs = topic_specs(settings, names, devices, [app for app, promised in served.items() if promised])
    wanted = {spec.name for spec in specs}
    states = await broker.admin().states(wanted)
    unserved: tuple[str, ...] = ()
    if prune:
        there = await broker.admin().topics()
        known = {*devices, *(d.name for d in settings.all_devices()), *await _planned(broker, topics, there)}
        unserved = tuple(
            name
            for name in sorted(there - wanted)
            if topics.app_of(name) not in {None, *settings.apps} or topics.device_of(name) not in {None, *known}
        )
    return Found(specs, differences(specs, states, settings.kafka.settings()), unserved)


async def _planned(broker: KafkaBroker, topics: Topics, there: Collection[str]) -> Collection[str]:
    """Devices that the newest plan counts on: these settings may be others than the planner's."""
    newest: Plan | None = None
    if topics.plan in there:
        async for record in read_results(broker, [TopicPartition(topics.plan, 0)], follow=False):
            try:
                plan = control.decode_plan(record.value or b"")
            except InvalidInputError:
                continue  # as those who follow plans do
            if newest is None or newest.epoch < plan.epoch:
                newest = plan
    return {} if newest is None else newest.incarnations


async def _apply(broker: KafkaBroker, found: Found) -> None:
    admin = broker.admin()
    await admin.create_topics(found.specs)
    changes: dict[str, dict[str, str]] = {}
    for one in found.differences:
        if one.has is not None and not one.remedy:
            changes.setdefault(one.topic, {})[one.what] = one.wants
    for topic, values in changes.items():
        await admin.configure(topic, values)


def _describe(
    settings: Settings,
    apps: Sequence[str],
    devices: Sequence[str],
    strimzi: str | None,
    user: str,
    *,
    markdown: bool,
    as_json: bool,
) -> None:
    names = app_names(settings, apps)
    topics, specs = Topics(settings.prefix), topic_specs(settings, names, devices)
    if strimzi is not None:
        from yaml import safe_dump_all

        allowed = [rule for rule in rules(topics, names) if rule.role != "audit"]
        made = [
            *kafka_topics(specs, settings.kafka.settings(), strimzi),
            *kafka_users(allowed, user, strimzi),
        ]
        if as_json:
            print_json(made)
        else:
            typer.echo(safe_dump_all(made, sort_keys=False, explicit_start=True), nl=False)
        return
    found = listed(topics, names, specs)
    if as_json:
        copies = {"replication": settings.kafka.replication, "min_insync_replicas": settings.kafka.min_insync_replicas}
        print_json({"topics": [asdict(info) for info in found], **copies})
    elif markdown:
        typer.echo(as_markdown(found), nl=False)
    else:
        out.print(_table(found, settings))


def _table(found: tuple[TopicInfo, ...], settings: Settings) -> Table:
    copies, least = settings.kafka.replication, settings.kafka.min_insync_replicas
    told = f"copies: {copies or 'as the broker does'}, in sync at least: {least or 'as the broker does'}"
    shown = Table(title="sluice topics", caption=told)
    shown.add_column("topic", no_wrap=True)
    for column in ("kept", "written by", "read by"):
        shown.add_column(column)
    for info in found:
        shown.add_row(info.name, info.kept, ", ".join(info.writers), ", ".join(info.readers))
    return shown


def _tell_differences(found: Found, *, as_json: bool) -> None:
    if as_json:
        print_json({"topics": len(found.specs), "differences": [asdict(one) for one in found.differences]})
        return
    if not found.differences:
        out.print(f"{len(found.specs)} topics are there, as the settings say", highlight=False)
        return
    shown = Table()
    for column in ("topic", "what", "is", "should be"):
        shown.add_column(column, overflow="fold")
    for one in found.differences:
        shown.add_row(one.topic, one.what, one.has or "missing", one.wants)
    out.print(shown)
    for one in found.differences:
        if one.remedy:
            out.print(f"{one.topic}: {one.what}: {one.remedy}", highlight=False)
    if any(not one.remedy for one in found.differences):
        out.print("`sluice topics --apply` makes them so", highlight=False)


def _tell_unserved(found: Found, deleted: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        print_json({"unserved": list(found.unserved), "deleted": list(deleted)})
        return
    if deleted:
        for name in deleted:
            out.print(name, highlight=False, soft_wrap=True)
        out.print(f"{_counted(deleted)} that nobody served: deleted, with all that was in them", highlight=False)
    if not found.unserved:
        out.print("every topic of an app or device belongs to one that is served", highlight=False)
    else:
        for name in found.unserved:
            out.print(name, highlight=False, soft_wrap=True)
        told = f"{_counted(found.unserved)} that nobody serves; nothing was deleted: add --yes to delete them"
        out.print(told if not deleted else f"{_counted(found.unserved)} that nobody serves", highlight=False)


def _counted(topics: Sequence[str]) -> str:
    return f"{len(topics)} topic{'s' * (len(topics) != 1)}"
