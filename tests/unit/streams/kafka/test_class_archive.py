"""What Java has read of Kafka's classes: made once for each Java, and a start without it is only slower."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams.local_kafka.class_archive import sharing


class Maker:
    """Writes archives. ``told``: what was said meanwhile."""

    def __init__(self, writes: Callable[[Path], object]) -> None:
        self.made = 0
        self.told: list[str] = []
        self._writes = writes

    def write(self, file: Path) -> None:
        self.made += 1
        self._writes(file)

    def options(self, java: Path, jars: Path) -> tuple[str, ...]:
        return sharing(str(java), jars, self.write, self.told.append)


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    folder = tmp_path / "jars"
    folder.mkdir()
    (folder / "kafka_2.13-4.1.0.jar").touch()
    for name in ("java", "other"):
        (tmp_path / name).write_text(name)
    return folder


def test_one_is_made_for_each_java_by_one_process_and_read_by_all(jars: Path, tmp_path: Path) -> None:
    maker = Maker(lambda file: file.write_bytes(b"classes"))
    with ThreadPoolExecutor(4) as some:
        (options,) = set(some.map(lambda _: maker.options(tmp_path / "java", jars), range(4)))
    assert maker.made == 1 and maker.told == ["preparing faster starts"]
    (option,) = options
    name, _, file = option.partition("=")
    assert name == "-XX:SharedArchiveFile" and Path(file).read_bytes() == b"classes"
    assert maker.options(tmp_path / "other", jars) not in {(), options} and maker.made == 2
    (tmp_path / "java").write_text("another version, in its place")
    assert maker.options(tmp_path / "java", jars) != options and maker.made == 3
    assert sorted(p.suffix for p in jars.iterdir()) == [".jar", ".jsa", ".jsa", ".jsa"], "nothing else is left"


def fails(_: Path) -> None:
    raise ConfigurationError("it does not start")


def fails_midway(file: Path) -> None:
    file.write_bytes(b"a part")
    fails(file)


@pytest.mark.parametrize("writes", [fails, fails_midway, lambda _file: None])
def test_where_none_can_be_made_that_is_tried_once(
    jars: Path, tmp_path: Path, writes: Callable[[Path], object]
) -> None:
    maker = Maker(writes)
    assert [maker.options(tmp_path / "java", jars) for _ in range(2)] == [(), ()]
    assert maker.made == 1


def test_without_jars_of_kafka_or_a_folder_to_write_to_there_is_none(jars: Path, tmp_path: Path) -> None:
    maker = Maker(lambda file: file.write_bytes(b"classes"))
    assert maker.options(tmp_path / "java", tmp_path) == ()
    assert maker.options(tmp_path / "no java", jars) == ()
    full = Maker(lambda file: (file.parent / "no folder" / "made").write_bytes(b""))
    assert full.options(tmp_path / "java", jars) == ()
    assert maker.made == 0
