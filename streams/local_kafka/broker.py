"""An Apache Kafka on this machine, of one node or of several that copy from each other, on loopback only.

A folder holds all of it: that of one node (``sluicegate.streams.local_kafka.node``), or ``node-1`` and so on with
``cluster.json``. Starting a folder again goes on with its data, and a broker keeps the number of nodes it began with.
Nothing listens beyond 127.0.0.1. After a crash the controller lets a node in once the session of the one before has run
out, so that session is short.
"""

import json
import random
import socket
import tempfile
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams.local_kafka.class_archive import archiving, sharing
from sluicegate.streams.local_kafka.jars import KAFKA_VERSION, ensure_jars, find_java
from sluicegate.streams.local_kafka.node import LocalNode
from sluicegate.streams.local_kafka.security import LocalSecurity
from sluicegate.streams.local_kafka.server_properties import HOST, NodePorts, server_properties

Progress = Callable[[str], None]
_ARCHIVED = 60.0
"""Seconds that a server may take to write what it has read of its classes, as it ends."""

HEAP_MB = 512
HEAP_OF_SEVERAL_MB = 256
SIZES = (1, 3, 5)
_FIRST_PORT, _PORTS_END = 12_000, 32_000
"""Below those that connections get at their own end: a client that dials a dead node there may meet itself, which then
holds the node's port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One node of several."""

    node: int
    running: bool
    port: int | None
    pid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBrokerStatus:
    """What there is. ``running``: all of it. ``url`` is for ``streams.connect``, None where nothing runs; ``port`` and
    ``pid``: of the first node. ``nodes``: each of them."""

    running: bool
    folder: str
    url: str | None = None
    port: int | None = None
    pid: int | None = None
    version: str = KAFKA_VERSION
    nodes: tuple[NodeStatus, ...] = ()

    @property
    def missing(self) -> tuple[int, ...]:
        """Nodes that do not run."""
        return tuple(status.node for status in self.nodes if not status.running)


class LocalBroker:
    """The broker of one folder. ``home``: where jars are kept. All calls block, within the bounds they name.

    ``heap_mb``: of each node; None: 512 alone, 256 each of several. ``users``: names; with any, it speaks TLS and SCRAM
    alone and obeys access rules (``sluicegate.streams.local_kafka.security``); they are those of the folder's first
    start. ``nodes``: 1, 3 or 5; None: as many as the folder has, else 1. ``told``: of a port, the one that is told to
    others in its place, by somebody who forwards. ``version``: of Apache Kafka.
    """

    def __init__(
        self,
        folder: Path,
        *,
        home: Path,
        heap_mb: int | None = None,
        users: Sequence[str] = (),
        nodes: int | None = None,
        told: Callable[[int], int] = lambda port: port,
        version: str = KAFKA_VERSION,
    ) -> None:
        self._folder = folder.absolute()
        self._home = home
        count = self._size(nodes)
        self._heap_mb = heap_mb or (HEAP_MB if count == 1 else HEAP_OF_SEVERAL_MB)
        self._told = told
        self._version = version
        self._archive: Path | None = None
        """Where its server, when it ends, writes what it has read of its classes."""
        self.security = LocalSecurity(self._folder, users) if users else None
        self.nodes: Mapping[int, LocalNode] = (
            {1: LocalNode(1, self._folder, "Kafka")}
            if count == 1
            else {n: LocalNode(n, self._folder / f"node-{n}", f"node {n}") for n in range(1, count + 1)}
        )

    def status(self) -> LocalBrokerStatus:
        """Whether it runs, and where."""
        each = tuple(_status(node) for node in self.nodes.values())
        ports = [status.port for status in each if status.port is not None]
        known = any(status.running for status in each)
        return LocalBrokerStatus(
            running=all(status.running for status in each),
            folder=str(self._folder),
            url="kafka://" + ",".join(f"{HOST}:{port}" for port in ports) if known else None,
            port=each[0].port,
            pid=each[0].pid,
            version=self._version,
            nodes=each,
        )

    def start(self, *, port: int = 0, within: float = 60.0, progress: Progress = lambda _: None) -> LocalBrokerStatus:
        """Start what does not run, and wait until all serve. ``port``: of the first node, the others have those behind
        it; 0: the folder's last ones, else free ones. Running: as it is. ``within``: seconds, without what is done once
        on a machine: fetching jars, and reading their classes.

        Raises ConfigurationError in one line: java, mvn or jars missing, port taken, folder unwritable, no start.
        """
        missing = [node for node in self.nodes.values() if node.pid is None]
        if missing:
            self._start(missing, port, within, progress)
        return self.status()

    def start_node(self, number: int, *, within: float = 60.0) -> None:
        """Start this node again, the others being up, and wait until it serves."""
        if self.nodes[number].pid is None:
            self._start([self.nodes[number]], 0, within, lambda _: None)

    def stop(self, *, within: float = 20.0) -> bool:
        """Ask all to stop, end them after ``within`` seconds; whether any ran."""
        until = time.monotonic() + within
        ran = [node.ask_to_stop() for node in self.nodes.values()]
        for node in self.nodes.values():
            node.end(within=max(0.0, until - time.monotonic()))
        return any(ran)

    def _start(self, missing: Sequence[LocalNode], port: int, within: float, progress: Progress) -> None:
        java = find_java()
        jars = ensure_jars(self._home, progress, self._version)
        writing = self._archive
        shares = sharing(java, jars, self._archive_classes, progress) if writing is None else ()
        cluster = self._prepare_folder()
        if self.security is not None:
            self.security.prepare()
        ports = self._choose_ports(missing, port)
        self._configure(missing, ports)
        for node in missing:
            if not node.formatted:
                progress("formatting its storage" if len(self.nodes) == 1 else f"formatting storage {node.number}")
                node.format(java, jars, self._format_arguments(cluster), shares)
        progress("starting")
        try:
            until = time.monotonic() + within
            for node in missing:
                node.launch(java, jars, self._heap_mb, shares if writing is None else archiving(writing))
            for node in missing:
                node.wait_until_started(until)
        except BaseException:
            for node in missing:
                node.end(within=5.0)
            raise

    def _size(self, asked: int | None) -> int:
        has = self._cluster().get("nodes")
        known = has if isinstance(has, int) else 1 if (self._folder / "data").exists() else None
        if asked is not None and asked not in SIZES:
            raise ConfigurationError(f"nodes: {asked}, but a quorum is odd and small; give 1, 3 or 5")
        if known is not None and asked is not None and known != asked:
            raise ConfigurationError(
                f"{self._folder} holds a broker of {known} node{'s' * (known > 1)}, not of {asked}; "
                "choose another folder, or leave the number out"
            )
        return known or asked or 1

    def _prepare_folder(self) -> str:
        """Make the folder, and the cluster's id where there is none yet."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            cluster = self._cluster().get("id") or urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
            if len(self.nodes) > 1:
                self._cluster_file.write_text(json.dumps({"nodes": len(self.nodes), "id": cluster}))
        except OSError as error:
            raise ConfigurationError(f"{self._folder}: {error.strerror}; choose a writable folder") from error
        return str(cluster)

    def _choose_ports(self, missing: Sequence[LocalNode], port: int) -> dict[int, NodePorts]:
        """Ports of all nodes: those that run keep theirs, and so do then the others."""
        chosen: dict[int, NodePorts] = {}
        port = port if len(missing) == len(self.nodes) else 0
        free = _free_ports(2 * len(self.nodes))
        for place, (number, node) in enumerate(self.nodes.items()):
            known = node.ports
            if node not in missing and known is not None:
                chosen[number] = known
                continue
            asked = port + place if port else 0
            clients = known.clients if known is not None else 0
            if asked and not _is_free(asked):
                raise ConfigurationError(f"port {asked} is taken; stop what listens there or choose another")
            if not asked:
                asked = clients if clients and _is_free(clients) else free.pop()
            # The controller's address may be written into the data: it stays that of the first start.
            if known is not None and not _is_free(known.controllers):
                raise ConfigurationError(
                    f"port {known.controllers}, this folder's controller's, is taken; stop what listens there"
                )
            chosen[number] = NodePorts(
                clients=asked, controllers=known.controllers if known is not None else free.pop()
            )
        return chosen

    def _configure(self, missing: Sequence[LocalNode], ports: Mapping[int, NodePorts]) -> None:
        told = {
            number: NodePorts(clients=self._told(own.clients), controllers=self._told(own.controllers))
            for number, own in ports.items()
        }
        listener = "PLAINTEXT" if self.security is None else "SASL_SSL"
        for node in missing:
            text = server_properties(node.number, ports, told, data=node.data, listener=listener)
            secured = "" if self.security is None else self.security.properties()
            node.prepare(text + secured, ports[node.number])

    def _archive_classes(self, file: Path) -> None:
        """By a server of no other use. Raises ConfigurationError where that does not end by itself: Java may die of a
        part of an archive."""
        with tempfile.TemporaryDirectory(prefix="sluice-kafka-") as folder:
            once = LocalBroker(Path(folder) / "broker", home=self._home, version=self._version)
            once._archive = file
            once.start(within=30.0)
            began = time.monotonic()
            once.stop(within=_ARCHIVED)
            if time.monotonic() - began >= _ARCHIVED:
                raise ConfigurationError(f"its classes were not written within {_ARCHIVED:.0f} s")

    def _format_arguments(self, cluster: str) -> list[str]:
        alone = ["--standalone"] if len(self.nodes) == 1 else []
        users = [] if self.security is None else self.security.format_arguments()
        return [*alone, f"--cluster-id={cluster}", *users]

    @property
    def _cluster_file(self) -> Path:
        return self._folder / "cluster.json"

    def _cluster(self) -> dict[str, Any]:
        try:
            held = json.loads(self._cluster_file.read_text())
        except (OSError, ValueError):
            return {}
        return held if isinstance(held, dict) else {}


def _status(node: LocalNode) -> NodeStatus:
    pid, ports = node.pid, node.ports
    return NodeStatus(node=node.number, running=pid is not None, port=None if ports is None else ports.clients, pid=pid)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError):
            return False
    return True


def _free_ports(count: int) -> list[int]:
    ports = random.SystemRandom().sample(range(_FIRST_PORT, _PORTS_END), 10 * count)
    return [port for port in ports if _is_free(port)][:count]
