"""Apps on the compacted registry topic: one record an app, with its variants and profiles, keyed by its name.

Rules. An app's record is replaced whole, so that nobody reads half of one; what is no longer served is a tombstone.
What stands there already, byte for byte, is not written again. Writing returns how far a reader must have read to see
it. Reading takes the last record of each app up to the end as it was when reading began, and checks it as any input:
who asks what is served passes over what no stage heeds.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Any

import orjson

from sluicegate.domain.errors import InvalidInputError, SluiceError
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.registered_apps import merged
from sluicegate.profiles.demo.build_models import DEFAULT
from sluicegate.profiles.formats.catalogue_json import app_to_document, profile_to_document, variant_to_document
from sluicegate.sluice.audit.result_log import read_results
from sluicegate.sluice.catalogue.run_folders import SAID_AFTER
from sluicegate.stages.following.registry_follower import part_of
from sluicegate.streams.ports import Broker, Producer, TopicPartition, UnreachableError, Written
from sluicegate.streams.topics import Topics

_LOOK_EVERY = 0.25
_PARTITION = 0


def app_record(catalogue: Catalogue, app: str) -> bytes:
    """The part of the catalogue that is about ``app``, as a document of its own."""
    names = [v.name for v in catalogue.of_app(app)]
    document: dict[str, Any] = {
        "format": "sluice-catalogue/1",
        "apps": [app_to_document(catalogue.apps[app])],
        "variants": [variant_to_document(catalogue.variants[name]) for name in sorted(names)],
        "profiles": [profile_to_document(p) for (v, _), p in sorted(catalogue.profiles.items()) if v in names],
    }
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


async def publish_catalogue(
    broker: Broker, producer: Producer, topics: Topics, catalogue: Catalogue, *, only: str | None = None
) -> int:
    """Make the topic say what ``catalogue`` says, of the app ``only`` where one is named.

    Returns the offset from which on a reader has seen it. Raises ConfigurationError where there is no such topic.
    """
    there, end = await _records(broker, topics)
    wanted = {app: app_record(catalogue, app) for app in catalogue.apps if only in (None, app)}
    changes: dict[str, bytes | None] = {app: data for app, data in wanted.items() if there.get(app) != data}
    changes |= {app: None for app in there if app not in wanted and only in (None, app)}
    sent = [
        await producer.send(topics.registry, data, key=app.encode(), partition=_PARTITION)
        for app, data in sorted(changes.items())
    ]
    written: list[Written] = [await acknowledged for acknowledged in sent]
    return max((w.offset + 1 for w in written), default=end)


async def is_said(broker: Broker, topics: Topics, catalogue: Catalogue, app: str) -> bool:
    """Whether the topic says of ``app`` what ``catalogue`` says, byte for byte."""
    there, _ = await _records(broker, topics)
    return there.get(app) == (app_record(catalogue, app) if app in catalogue.apps else None)


async def read_catalogue(broker: Broker, topics: Topics) -> Catalogue:
    """What the topic says, rebuilt. Raises InvalidInputError for a record that is no catalogue of one app."""
    there, _ = await _records(broker, topics)
    return merged([part_of(app, data) for app, data in sorted(there.items())])


async def check_served(broker: Broker, topics: Topics, apps: Collection[str]) -> bool:
    """Whether the system on ``broker`` has said what it serves. Raises InvalidInputError where that is not ``apps``.

    Where this user may not read it, nothing is checked.
    """
    try:
        there, _ = await _served(broker, topics)
    except SluiceError:
        return False
    _refuse_strangers(there, apps)
    return bool(there)


async def await_served(
    broker: Broker, topics: Topics, apps: Collection[str], *, within: float, say: Callable[[str], None]
) -> Catalogue | None:
    """What the system on ``broker`` serves; None where this user may not read it.

    It may be starting: it is waited for, ``within`` seconds, and after ``SAID_AFTER`` it is said what for. Raises
    InvalidInputError where it serves other apps than ``apps``, or says nothing.
    """
    missing = (
        f"nothing on {broker.url} has said what it serves under the prefix {topics.prefix!r}: start `sluice up`, or on "
        "Apache Kafka `sluice up planner`"
    )
    told = False
    waited = 0.0
    while True:
        there: Mapping[str, Catalogue] = {}
        try:
            if topics.registry in await broker.admin().topics():  # which the planner makes
                there, end = await _served(broker, topics)
                if end and not there:  # all that it has said is withdrawn: its last app is retired
                    missing = f"no app is served on {broker.url}: register one, or `sluice demo-apps on`"
        except UnreachableError:
            raise
        except SluiceError:
            return None
        if there:
            _refuse_strangers(there, apps)
            return merged([part for _, part in sorted(there.items())])
        if waited >= within:
            raise InvalidInputError("--broker", missing)
        if waited >= SAID_AFTER and not told:
            told = True
            say(f"waiting: {missing}")
        await asyncio.sleep(_LOOK_EVERY)
        waited += _LOOK_EVERY


def _refuse_strangers(there: Mapping[str, Catalogue], apps: Collection[str]) -> None:
    strange = sorted(set(apps) - there.keys())
    if there and strange:
        raise InvalidInputError(
            "--app",
            f"{', '.join(strange)}: not served by this system, which serves {', '.join(sorted(there))}; ask for one of "
            + (
                "these, or `sluice demo-apps on` has it serve the demo's too"
                if set(strange) <= set(DEFAULT)
                else "these, or register it: sluice register --app NAME …"
            ),
        )


async def served_apps(broker: Broker, topics: Topics) -> Mapping[str, bool]:
    """Apps that the system on ``broker`` has said it serves, and whether they bring a promise; none where it has no
    registry yet."""
    if topics.registry not in await broker.admin().topics():
        return {}
    served, _ = await _served(broker, topics)
    return {app: part.apps[app].promise.active for app, part in served.items()}


async def _served(broker: Broker, topics: Topics) -> tuple[Mapping[str, Catalogue], int]:
    """What is served, by app, and where the topic ends. What no stage heeds is passed over, as they do."""
    found: dict[str, Catalogue] = {}
    end = 0
    async for app, data, behind in _changes(broker, topics):
        end = behind
        if not data:
            found.pop(app, None)
            continue
        try:
            found[app] = part_of(app, data)
        except InvalidInputError:
            continue
    return found, end


async def _records(broker: Broker, topics: Topics) -> tuple[Mapping[str, bytes], int]:
    found: dict[str, bytes] = {}
    end = 0
    async for app, data, behind in _changes(broker, topics):
        end = behind
        if data:
            found[app] = data
        else:
            found.pop(app, None)
    return found, end


async def _changes(broker: Broker, topics: Topics) -> AsyncIterator[tuple[str, bytes | None, int]]:
    """Each record: its app, what it says, and the offset behind it."""
    async for record in read_results(broker, [TopicPartition(topics.registry, _PARTITION)], follow=False):
        app = (record.key or b"").decode(errors="replace")
        yield app, record.value if app else None, record.offset + 1
