"""Publishes a registration and waits until it is served.

Rules. Topics of a new app are created before its record is on the registry topic, so that nobody reads of an app that
cannot be asked. The topic's last record is of what is kept last: who publishes looks again whether another has changed
it meanwhile. Who registers reads its own write: the wait ends with a plan that was made of the new record and is
loaded somewhere, which is when the first query is answered without waiting. Where nothing runs, nothing is told: it is
read at the next start.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

from sluicegate.domain.errors import InvalidInputError, SluiceError
from sluicegate.domain.plan import NO_EPOCH, STANDS_IN, Epoch, Plan, follows
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.registered_apps import Registered
from sluicegate.sluice.audit.result_log import read_results
from sluicegate.sluice.catalogue.run_folders import SAID_AFTER, connected, live_server, strange_home
from sluicegate.sluice.registration.registry_topic import is_said, publish_catalogue
from sluicegate.sluice.settings.settings import Settings
from sluicegate.streams.ports import Broker, Record, TopicPartition
from sluicegate.streams.records import control
from sluicegate.streams.topics import Topics

log = logging.getLogger(__name__)

WAIT = 10.0
"""Seconds that a plan with the new variants is waited for by default."""


@dataclass(frozen=True, slots=True)
class Announced:
    """A registration that was published. ``place``: topic and offset from which on a reader has seen it. ``plan``: that
    serves it, None where none did.

    ``why``: what went wrong, where nothing was told.
    """

    place: str | None = None
    plan: Epoch | None = None
    why: str = ""


async def announce(
    settings: Settings, app: str, *, wait: float = WAIT, held: Catalogue | None = None
) -> Announced | None:
    """Tell what ``held`` (else ``settings.home``) has of ``app``; None where nothing runs."""
    url = settings.broker
    if url == "memory://":
        address = await asyncio.to_thread(live_server, settings)
        if address is None:
            return None
        strange = await asyncio.to_thread(strange_home, settings, address)
        if strange is not None:
            told = f"{address}: that system's models lie in {strange}, this one's in {settings.home} (SLUICE_HOME)"
            return Announced(why=told)
        url = f"memory+{address}"
    broker = connected(settings, url)
    producer = broker.producer()
    topics = Topics(settings.prefix)

    def kept() -> Catalogue:
        known = held or Registered(settings.home).catalogue(verify=False) or Catalogue.of((), (), ())
        return known.only({app} & known.apps.keys())

    catalogue = kept()
    try:
        await producer.start()
        while True:
            if catalogue.apps:
                promised = [name for name, known in catalogue.apps.items() if known.promise.active]
                await broker.admin().create_topics(
                    topics.specs(
                        [app], partitions=settings.partitions_of([app], promised), policies=settings.topics.policies()
                    )
                )
            fresh = wait > 0.0 and not await is_said(broker, topics, catalogue, app)
            before = await _newest_plan(broker, topics) if fresh else NO_EPOCH
            offset = await publish_catalogue(broker, producer, topics, catalogue, only=app)
            if (now := kept()) == catalogue:
                break
            catalogue = now
        variants = set(catalogue.variants)
        plan = await planned(broker, topics, app, variants, after=before, within=wait) if wait > 0.0 else None
        return Announced(f"{topics.registry}@{offset}", plan)
    except SluiceError as error:
        return Announced(why=f"{url}: {error}")
    finally:
        await producer.stop()
        await broker.close()


async def planned(
    broker: Broker, topics: Topics, app: str, variants: Collection[str], *, after: Epoch = NO_EPOCH, within: float
) -> Epoch | None:
    """The newest plan once it follows ``after``, hosts these of ``app`` (none: ``variants`` is empty) and a device has
    loaded them."""
    watch = _Watch(app, frozenset(variants), topics.plan, after)
    partitions = [TopicPartition(topics.plan, 0), TopicPartition(topics.acks, 0)]
    try:
        async with asyncio.timeout(within):
            # What is there already is only taken in: a plan of the past may have hosted the same.
            async for record in read_results(broker, partitions, follow=False):
                watch.read(record)
            async for record in read_results(broker, partitions, follow=True):
                if watch.read(record):
                    break
    except TimeoutError:
        return None
    return watch.plan.epoch if watch.plan is not None else None


async def _newest_plan(broker: Broker, topics: Topics) -> Epoch:
    watch = _Watch("", None, topics.plan)
    async for record in read_results(broker, [TopicPartition(topics.plan, 0)], follow=False):
        watch.read(record)
    return watch.plan.epoch if watch.plan is not None else NO_EPOCH


async def await_loaded(
    broker: Broker, topics: Topics, apps: Collection[str], *, within: float, say: Callable[[str], None]
) -> None:
    """Return once a device has loaded what the newest plan hosts of each app, or that hosts nothing of it, unless that
    stands in for one that is being made.

    A system that starts says what it serves before it can: what is asked then would expire. Returns after ``within``
    seconds in any case, and where this user may not read plans; after ``SAID_AFTER`` it is said what is waited for.
    """
    watches = [_Watch(app, None, topics.plan) for app in apps]
    partitions = [TopicPartition(topics.plan, 0), TopicPartition(topics.acks, 0)]
    waiting = f"waiting: no worker of this system has a model of {', '.join(sorted(apps))} loaded yet"
    saying = asyncio.get_running_loop().call_later(SAID_AFTER, say, waiting)
    try:
        async with asyncio.timeout(within):
            async for record in read_results(broker, partitions, follow=False):
                for watch in watches:
                    watch.read(record)
            async for record in read_results(broker, partitions, follow=True):
                if not [watch for watch in watches if not watch.read(record)]:
                    return
    except (TimeoutError, SluiceError):
        return  # the answer says what is wrong
    finally:
        saying.cancel()


class _Watch:
    """Folds plans and acknowledgements, in any order between the two topics. ``variants``: None for any. ``after``: the
    plan that is waited for follows this one."""

    def __init__(self, app: str, variants: frozenset[str] | None, plans: str, after: Epoch = NO_EPOCH) -> None:
        self._app = app
        self._variants = variants
        self._plans = plans
        self._after = after
        self._staged: dict[str, tuple[Epoch, frozenset[str]]] = {}
        self.plan: Plan | None = None

    def read(self, record: Record) -> bool:
        """Whether that is so by now."""
        if record.value is None:
            return False
        try:
            if record.topic == self._plans:
                plan = control.decode_plan(record.value)
                if follows(plan.epoch, self.plan.epoch if self.plan is not None else NO_EPOCH):
                    self.plan = plan
            else:
                told = control.decode_acknowledged(record.value)
                self._staged[told.device] = (told.epoch, frozenset(told.variants))
        except InvalidInputError:
            return False  # anybody can write there
        return self._done()

    def _done(self) -> bool:
        if self.plan is None or not follows(self.plan.epoch, self._after):
            return False
        hosts = [p for p in self.plan.of_app(self._app) if p.variants]
        if not hosts:  # a plan that stands in for a better one may host fewer apps
            return not self._variants and STANDS_IN not in self.plan.reason
        if self._variants is not None and any(v not in self._variants for p in hosts for v in p.variants):
            return False
        return any(self._ready(p.device, frozenset(p.variants)) for p in hosts)

    def _ready(self, device: str, variants: frozenset[str]) -> bool:
        assert self.plan is not None
        epoch, staged = self._staged.get(device, (Epoch(0, 0), frozenset()))
        return epoch >= self.plan.epoch and bool(staged & variants)
