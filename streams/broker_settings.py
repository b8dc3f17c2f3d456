"""What can be set on each broker. Plain values, so that reading settings imports no client."""

from dataclasses import dataclass, field
from pathlib import Path

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """Settings of the embedded broker. ``read_bytes``: above it what all groups have read goes, and where no group
    reads what is older than ``unread_s``. ``max_bytes``: cap on all that is kept; above it the largest partition loses
    its oldest eighth, read or not.

    ``max_message_bytes``: limit of topics that set none. ``max_partition_bytes``: cap a partition, None for none.
    ``session_timeout``: seconds that the partitions of a static member wait for its return.
    """

    read_bytes: int = 2048 * MIB
    unread_s: float = 60.0
    max_bytes: int = 2048 * MIB
    max_message_bytes: int = MIB
    max_partition_bytes: int | None = None
    session_timeout: float = 10.0


@dataclass(frozen=True, slots=True)
class KafkaOAuth:
    """Who gives tokens for SASL OAUTHBEARER, by client credentials."""

    token_url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSecurity:
    """TLS and SASL. ``protocol``: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL; files are PEM."""

    protocol: str = "PLAINTEXT"
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    key_password: str | None = field(default=None, repr=False)
    sasl_mechanism: str = "SCRAM-SHA-512"
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    oauth: KafkaOAuth | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """Seconds and bytes. ``linger``: how long a batch waits to fill; ``batch_bytes``: how large it gets a partition.

    ``rebalance_timeout``: what members of a group have to finish what they hold. ``fetch_wait``: how long the broker
    holds a fetch open (half a second at least of who belongs to no group), and so how late a resumed partition may be
    read; ``fetch_bytes``: of one partition at once. ``gather``: least time between two reads of a consumer that find
    something: each costs a request to the broker, and what comes close together is cheaper read together.
    ``stop_timeout``: how long a client may take to flush or leave before it is cut off. ``transaction_timeout``: after
    which the broker undoes a transaction left open, until when nobody reads past it. ``answer_timeout``: how long a
    broker may take to answer before it is taken for hung and asked again, or another is; ``request_timeout``: how long
    all of that may take. ``metadata_age``: how old what a client knows of who leads what may get: who was cut off from
    the others answers on. ``rack``: where the client runs; the nearest replica is read. ``replication``,
    ``min_insync_replicas``: of topics that are created, None: as the broker does by default. ``library``: what reads
    and writes, aiokafka or rdkafka. ``group_protocol``: how groups share partitions, classic or, by rdkafka alone,
    consumer (KIP-848), where session and heartbeats are the broker's to say.
    """

    library: str = "aiokafka"
    group_protocol: str = "classic"

    client_id: str = "sluicegate"
    linger: float = 0.001
    max_message_bytes: int = 16 * MIB
    request_timeout: float = 30.0
    answer_timeout: float = 10.0
    metadata_age: float = 30.0
    stop_timeout: float = 10.0
    session_timeout: float = 10.0
    rebalance_timeout: float = 15.0
    heartbeat_interval: float = 1.0
    fetch_wait: float = 0.1
    gather: float = 0.003
    fetch_bytes: int = 4 * MIB
    batch_bytes: int = 256 << 10
    replication: int | None = None
    min_insync_replicas: int | None = None
    security: KafkaSecurity = KafkaSecurity()
    compression: str | None = None
    transaction_timeout: float = 10.0
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSettings:
    """A client of another process's memory log. ``token``: what that process asks for, if it does."""

    token: str | None = field(default=None, repr=False)
    timeout: float = 30.0
    max_message_bytes: int = 16 * MIB
