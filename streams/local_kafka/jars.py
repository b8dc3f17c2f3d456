"""Apache Kafka's jars: copied once from the Maven repositories that this machine's Maven is set up for."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams.local_kafka.programs import ran

KAFKA_VERSION = "4.1.0"
LOG4J_VERSION = "2.24.3"
_MIN_JAVA = 17
_VERSION_TIMEOUT = 30.0
_MAVEN_TIMEOUT = 900.0

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>sluicegate</groupId>
  <artifactId>local-broker</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{kafka}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j-impl</artifactId>
      <version>{log4j}</version>
    </dependency>
  </dependencies>
</project>
"""


def find_java() -> str:
    """Path of a Java that Kafka runs on. Raises ConfigurationError where there is none."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    java = java or shutil.which("java")
    if java is None:
        raise ConfigurationError(f"java is missing: install Java {_MIN_JAVA} or later, or set JAVA_HOME")
    told = ran([java, "-version"], f"{java} does not tell its version", within=_VERSION_TIMEOUT).stderr
    version = _java_version(told)
    if version is not None and version < _MIN_JAVA:
        raise ConfigurationError(f"{java} is Java {version}: Kafka needs {_MIN_JAVA} or later; set JAVA_HOME to one")
    return java


def ensure_jars(home: Path, progress: Callable[[str], None] = lambda _: None, version: str = KAFKA_VERSION) -> Path:
    """Folder with all jars, below ``home``; fetched where absent, by one process at a time. Raises ConfigurationError
    where that fails."""
    folder = home.resolve() / "kafka" / f"{version}-log4j-{LOG4J_VERSION}"
    if folder.is_dir():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise ConfigurationError(
            f"mvn is missing: install Maven 3.8 or later, or put the jars of kafka_2.13 {version} into {folder}"
        )
    progress(f"fetching Apache Kafka {version}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with alone(folder.parent):
            if not folder.is_dir():  # another process may have been first
                with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetch-") as work:
                    _copy(maven, Path(work), version)
                    (Path(work) / "lib").replace(folder)
    except OSError as error:
        raise ConfigurationError(f"{folder}: {error.strerror}; set SLUICE_HOME to a writable folder") from error
    return folder


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """No other process is in here for this folder. The lock goes with the process, however that ends."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _copy(maven: str, work: Path, version: str) -> None:
    (work / "pom.xml").write_text(_POM.format(kafka=version, log4j=LOG4J_VERSION))
    command = [
        maven, "-q", "-B", "-f", str(work / "pom.xml"), "dependency:copy-dependencies",
        f"-DoutputDirectory={work / 'lib'}", "-DincludeScope=runtime",
    ]  # fmt: skip
    done = ran(command, "mvn did not fetch Kafka's jars", within=_MAVEN_TIMEOUT)
    if done.returncode or not any((work / "lib").glob("kafka_*.jar")):
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
        why = lines[0][:300] if lines else f"exit code {done.returncode}"
        raise ConfigurationError(f"mvn cannot fetch Kafka's jars: {why}")


def _java_version(told: str) -> int | None:
    quoted = told.split('"')
    numbers = quoted[1].split(".") if len(quoted) > 2 else []
    try:
        return int(numbers[1] if numbers[0] == "1" else numbers[0].split("-")[0])
    except (IndexError, ValueError):
        return None
