"""The log that everything runs on. ``connect(url)`` gives its broker; ``sluicegate.streams.ports`` says what that can
do."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams.broker_settings import KafkaSettings, MemorySettings, RemoteSettings
from sluicegate.streams.ports import Broker


def connect(
    url: str,
    *,
    memory: MemorySettings | None = None,
    kafka: KafkaSettings | None = None,
    remote: RemoteSettings | None = None,
) -> Broker:
    """The broker at ``url``.

    ``memory://``: a new, empty one in this process. ``kafka://host:port[,host:port]``: Apache Kafka.
    ``file:///folder``: a kept log, read only. ``memory+http://127.0.0.1:port``: the memory log of another process.
    Raises ConfigurationError for anything else; connects to nothing yet.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme = ""
    match scheme:
        case "memory":
            from sluicegate.streams.memory.broker import MemoryBroker

            return MemoryBroker(memory)
        case "file":
            from sluicegate.streams.memory.broker import MemoryBroker

            return MemoryBroker.load(Path(unquote(urlsplit(url).path)), memory)
        case "kafka" if rest:
            return _kafka(rest.rstrip("/"), kafka or KafkaSettings())
        case "memory+http" if rest:
            from sluicegate.streams.remote.broker import RemoteBroker

            return RemoteBroker(f"http://{rest}", remote or RemoteSettings())
        case _:
            raise ConfigurationError(
                f"broker {url!r}: give memory://, kafka://host:port, memory+http://127.0.0.1:port or file:///folder"
            )


def _kafka(servers: str, settings: KafkaSettings) -> Broker:
    from sluicegate.streams.kafka.broker import KafkaBroker

    if settings.library != "rdkafka":
        return KafkaBroker(servers, settings)
    try:
        from sluicegate.streams.kafka.rdkafka.broker import RDKAFKA
    except ImportError as error:
        raise ConfigurationError(
            "kafka.library: rdkafka needs the package confluent-kafka, which is not installed; "
            "pip install 'sluicegate[rdkafka]', or set kafka.library: aiokafka"
        ) from error
    return KafkaBroker(servers, settings, RDKAFKA)
