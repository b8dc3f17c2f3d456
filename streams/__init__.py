"""The log that everything runs on. ``connect(url)`` gives its broker; ``streams.ports`` says what that can do."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from domain.errors import ConfigurationError
from streams.ports import Broker
from streams.settings import KafkaSettings, MemorySettings, RemoteSettings


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
            from streams.memory import MemoryBroker

            return MemoryBroker(memory)
        case "file":
            from streams.memory import MemoryBroker

            return MemoryBroker.load(Path(unquote(urlsplit(url).path)), memory)
        case "kafka" if rest:
            from streams.kafka import KafkaBroker

            return KafkaBroker(rest.rstrip("/"), kafka or KafkaSettings())
        case "memory+http" if rest:
            from streams.remote_client import RemoteBroker

            return RemoteBroker(f"http://{rest}", remote or RemoteSettings())
        case _:
            raise ConfigurationError(
                f"broker {url!r}: give memory://, kafka://host:port, memory+http://127.0.0.1:port or file:///folder"
            )
