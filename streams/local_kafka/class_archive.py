"""What Java has read of Kafka's classes, kept beside its jars (class data sharing): a server starts with it in three
fifths of the time and CPU. Written once for each Java, by a server that is started for it and stopped.
"""

import hashlib
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams.local_kafka.jars import alone

log = logging.getLogger(__name__)


def sharing(java: str, jars: Path, write: Callable[[Path], None], progress: Callable[[str], None]) -> tuple[str, ...]:
    """Options that Kafka's Java is started with; () where there is no archive, which is a slower start and no more.

    ``write``: makes one; raises ConfigurationError where it cannot. What could not be made is not tried again.
    """
    if not any(jars.glob("kafka_*.jar")):
        return ()
    try:
        kept = jars / f"classes-{_identity(java)}.jsa"
        if not kept.exists():
            with alone(jars):
                if not kept.exists():  # another process may have been first
                    progress("preparing faster starts")
                    _make(kept, write)
        return (f"-XX:SharedArchiveFile={kept}",) if kept.stat().st_size else ()
    except OSError as error:
        log.debug("no class archive in %s: %s", jars, error)
        return ()


def archiving(file: Path) -> tuple[str, ...]:
    """Options of a Java that writes ``file`` as it ends."""
    return (f"-XX:ArchiveClassesAtExit={file}",)


def _make(kept: Path, write: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix="classes-") as work:
        made = Path(work) / "made.jsa"
        try:
            write(made)
        except ConfigurationError as error:
            log.info("Kafka starts without a class archive: %s", error)
            made.unlink(missing_ok=True)
        if not made.exists():
            made.touch()
        made.replace(kept)


def _identity(java: str) -> str:
    """Of this very Java: an archive is of no use to another."""
    file = Path(java).resolve()
    told = f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}"
    return hashlib.sha256(told.encode()).hexdigest()[:16]
