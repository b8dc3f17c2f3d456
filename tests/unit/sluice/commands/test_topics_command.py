"""``sluice topics``: whose topics it takes for nobody's."""

import json
from pathlib import Path
from typing import Any

import pytest

from sluicegate.sluice.commands import topics as command
from sluicegate.sluice.registration.registry_topic import publish_catalogue
from sluicegate.sluice.settings.settings import settings_of
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.topics import Topics
from tests.harness import toy_catalogue


@pytest.mark.parametrize("asked", [(), ("named",)])
async def test_topics_of_an_app_that_the_settings_name_are_kept_though_the_planner_serves_others(
    tmp_path: Path, asked: tuple[str, ...]
) -> None:
    settings = settings_of("test", {"home": tmp_path, "apps": ["later"], "devices": [{"name": "d0"}]})
    broker: Any = MemoryBroker()
    names = Topics(settings.prefix)
    await broker.admin().create_topics(names.specs(["later", "serves", "named", "gone"], ["d0", "d9"]))
    producer = broker.producer()
    await producer.start()
    await publish_catalogue(broker, producer, names, toy_catalogue(("serves",)))
    found = await command._look(broker, settings, asked, (), prune=True)
    await broker.close()
    unserved = {names.app_of(topic) or names.device_of(topic) for topic in found.unserved}
    assert unserved == {"gone", "d9", "named"} - set(asked)


@pytest.mark.parametrize(
    ("unserved", "deleted", "lines"),
    [
        (("a.x", "a.y"), (), ["a.x", "a.y", "2 topics that nobody serves; nothing was deleted: add --yes to delete"]),
        ((), ("a.x",), ["a.x", "1 topic that nobody served: deleted, with all that was in them", "every topic of"]),
        ((), (), ["every topic of an app or device belongs to one that is served"]),
    ],
)
def test_pruning_tells_what_and_how_many_it_would_delete_and_what_it_has(
    unserved: tuple[str, ...], deleted: tuple[str, ...], lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = command.Found((), (), unserved)
    command._tell_unserved(found, deleted, as_json=False)
    told = capsys.readouterr().out.splitlines()
    assert [line[: len(start)] for line, start in zip(told, lines, strict=True)] == lines
    command._tell_unserved(found, deleted, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"unserved": [*unserved], "deleted": [*deleted]}
