"""What must hold at every moment of a seed, checked as it is written, committed and said.

Rules.
- *committed too far*: an offset that a stage commits lies behind nothing that led to no further record.
- *went back*: exactly once, a committed offset does not; and no process follows an older plan after a newer one.
- *answered twice*: exactly once, a second outcome of a query. *never asked*: an outcome of no query.
- *two lead*: plans of one term come from one process, each number behind the one before.
- *below the fence*: a worker that has acknowledged a plan answers nothing that the plan's fence gives to others.
- *stale state*: of what one process says of a key on a control topic, nothing is written behind what it said later.
- *dead letter*: nothing that clients or stages wrote here is one.
- *not stored*: in the end every outcome up to what sinks have committed is on disk.
What breaks one is told once for each kind, with its moment.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import orjson

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.plan import NO_EPOCH, Epoch, Plan
from sluicegate.domain.query import QueryKey
from sluicegate.streams.ports import Letter, Record, TopicPartition, Written
from sluicegate.streams.records import codec, control
from sluicegate.streams.topics import Topics
from tests.explore.loop import VirtualLoop

if TYPE_CHECKING:
    from tests.explore.cluster import Link

State = tuple["Link", str, bytes | None]
"""What one process says on a topic of a key."""


class Witness:
    """Sees all that is written. ``broken``: each kind of rule that was broken, and the first time it was."""

    def __init__(
        self, loop: VirtualLoop, topics: Topics, apps: Iterable[str], devices: Iterable[str], once: bool
    ) -> None:
        self._loop = loop
        self._once = once
        self._topics = topics
        names = tuple(apps)
        self._queries = {topics.queries(a): a for a in names}
        self._admitted = {topics.admitted(a): a for a in names}
        self._results = {topics.results(a): a for a in names}
        self._work = {topics.work(d): d for d in devices}
        self._order = 0
        self._asked: set[QueryKey] = set()
        self.open: dict[QueryKey, None] = {}
        self._records: dict[TopicPartition, list[tuple[QueryKey, int]]] = {}
        self._onward: dict[tuple[str, QueryKey], int] = {}  # (class of topic, query) -> when it was last written there
        self._committed: dict[tuple[str, TopicPartition], int] = {}
        self._leads: dict[int, tuple[Link, int]] = {}  # term -> who, and its last number
        self._plans: dict[Epoch, Plan] = {}
        self._followed: dict[tuple[Link, str], Epoch] = {}
        self._said: set[bytes] = set()
        self._states: dict[State, list[bytes]] = {}  # in the order in which they were said
        self._newest: dict[State, int] = {}  # of those, which was written
        self._fence: dict[Link, tuple[TopicPartition, int]] = {}
        self._offsets: dict[tuple[str, QueryKey], int] = {}
        self._ends: dict[str, int] = {}
        self._answered: dict[Link, set[QueryKey]] = {}
        self.plan: Plan | None = None
        self.acknowledged: dict[str, Epoch] = {}
        self.incarnations: dict[str, str] = {}
        self.broken: dict[str, str] = {}
        self.on_time: set[QueryKey] = set()

    def tell(self, kind: str, story: str) -> None:
        """This rule was broken."""
        self.broken.setdefault(kind, f"{self._loop.time() - 1000:7.3f} {kind}: {story}")

    def wrote(self, letter: Letter, place: Written, by: "Link | None") -> None:
        """A record is on its topic. ``by``: who wrote it, None for clients."""
        self._order += 1
        topic = letter.topic
        if topic in self._queries:
            named = dict(letter.headers)
            key = QueryKey(self._queries[topic], named["ce_source"].decode(), named["ce_id"].decode())
            self._asked.add(key)
            self.open[key] = None
            self._keep(place, key)
        elif topic in self._admitted:
            self._keep(place, key := _hop_key(letter))
            self._onward["admitted", key] = self._order
        elif topic in self._work:
            self._keep(place, key := _hop_key(letter))
            self._ends[topic] = place.offset + 1
            self._onward["work", key] = self._order
            self._offsets[self._work[topic], key] = place.offset
        elif topic in self._results:
            self._ended(letter, self._results[topic])
        elif by is not None:  # what is told of a stranger's is theirs who read it
            self._said_of_itself(letter, place, by)

    def _said_of_itself(self, letter: Letter, place: Written, by: "Link") -> None:
        topic, value = letter.topic, letter.value
        if topic == self._topics.dead_letters:
            self.tell("dead letter", codec.dead_letter_reason(_record(letter, place)))
        if not value:
            return
        if topic in self._topics.control:
            self._stands((by, topic, letter.key), value)
        if topic == self._topics.plan:
            self._planned(control.decode_plan(value), by)
        elif topic == self._topics.acks:
            told = control.decode_acknowledged(value)
            self.acknowledged[told.device] = told.epoch
        elif topic == self._topics.devices_metrics:
            seen = control.decode_heartbeat(value).seen
            self.incarnations[seen.device] = seen.incarnation

    def _stands(self, state: "State", value: bytes) -> None:
        said = self._states[state]
        number = next(at for at, held in enumerate(said) if held is value)
        newest = self._newest.setdefault(state, number)
        if number < newest:
            by, topic, key = state
            self.tell("stale state", f"{by.name} {topic} {key!r}: {number + 1} of {len(said)} behind {newest + 1}")
        self._newest[state] = max(newest, number)

    def _keep(self, place: Written, key: QueryKey) -> None:
        self._records.setdefault(TopicPartition(place.topic, place.partition), []).append((key, self._order))

    def _ended(self, letter: Letter, app: str) -> None:
        named = dict(letter.headers)
        source = named.get("ce_querysource", b"").decode()
        key = QueryKey(app, source, named["ce_id"].decode())
        if key not in self._asked:
            self.tell("never asked", str(key))
        elif key in self.open:
            del self.open[key]
        elif self._once:
            self.tell("answered twice", str(key))
        self._onward["result", key] = self._order
        if b'"kind":"answered"' in letter.value and b'"late":false' in letter.value:
            self.on_time.add(key)

    def _planned(self, plan: Plan, by: "Link | None") -> None:
        epoch = plan.epoch
        known = self._plans.get(epoch)
        if known is not None and known != plan:
            self.tell("two lead", f"two plans {epoch}")
        self._plans[epoch] = plan
        if by is not None and self._leads.setdefault(epoch.term, (by, epoch.number))[0] is not by:
            self.tell("two lead", f"two planners publish in term {epoch.term}")
        if self.plan is None or self.plan.epoch < epoch:
            self.plan = plan

    def committed(self, group: str, partition: TopicPartition, offset: int) -> None:
        """``group`` goes on at ``offset``."""
        records = self._records.get(partition)
        before = self._committed.get((group, partition), 0)
        if self._once and offset < before:
            self.tell("went back", f"{group} {partition} from {before} to {offset}")
        self._committed[group, partition] = max(before, offset)
        if records is None or partition.topic in self._results:
            return
        for key, at in records[before:offset]:
            if ("result", key) in self._onward:
                continue
            if max(self._onward.get((kind, key), 0) for kind in ("admitted", "work")) <= at:
                self.tell("committed too far", f"{group} {partition} to {offset}: nothing came of {key}")

    def says(self, letter: Letter, by: "Link") -> None:
        """``by`` hands a record to its client."""
        topic, value = letter.topic, letter.value
        if not value:
            return
        if topic in self._topics.control:
            said = self._states.setdefault((by, topic, letter.key), [])
            if all(held is not value for held in said):  # sent again, it is the same object
                said.append(value)
        if topic == self._topics.acks:
            told = control.decode_acknowledged(value)
            self._follows(by, topic, told.epoch, value)
            plan = self._plans.get(told.epoch)
            if plan is not None:
                work = TopicPartition(self._topics.work(told.device), 0)
                fence = plan.fences.get(told.device, 0)  # one beyond the end is a stranger's: nobody heeds it
                self._fence[by] = (work, fence if fence <= self._ends.get(work.topic, 0) else 0)
        elif topic == self._topics.devices_metrics:
            self._follows(by, topic, control.decode_heartbeat(value).epoch, value)
        elif topic in self._results and by in self._fence:
            named = dict(letter.headers)
            key = QueryKey(self._results[topic], named.get("ce_querysource", b"").decode(), named["ce_id"].decode())
            again = self._answered.setdefault(by, set())
            if key not in again:
                again.add(key)
                work, fence = self._fence[by]
                offset = self._offsets.get((self._work[work.topic], key), fence)
                if offset < fence:
                    self.tell("below the fence", f"{by.name} answers {key}, {offset} below {fence}")

    def _follows(self, by: "Link", topic: str, epoch: Epoch, value: bytes) -> None:
        if value in self._said:
            return  # sent again
        self._said.add(value)
        before = self._followed.get((by, topic), NO_EPOCH)
        if epoch < before:
            self.tell("went back", f"{by.name} from plan {before} to {epoch}")
        self._followed[by, topic] = epoch

    def transacts(self, offsets: Mapping[TopicPartition, int], by: "Link") -> None:
        """``by`` writes answers together with these offsets."""
        work, fence = self._fence.get(by, (None, 0))
        for partition, offset in offsets.items():
            if partition == work and offset <= fence:
                self.tell("below the fence", f"{by.name} answers what lies below {offset}, fence {fence}")

    def recovered(self, devices: Iterable[str]) -> str | None:
        """What is not: each of these devices is named in the newest plan, as it last said that it is."""
        if self.plan is None:
            return "there is no plan"
        for device in devices:
            if self.plan.incarnations.get(device) != self.incarnations.get(device):
                return f"{device} is not in the newest plan"
            if self.acknowledged.get(device) != self.plan.epoch:
                return f"{device} has not acknowledged the newest plan"
        return None


def _hop_key(letter: Letter) -> QueryKey:
    packed = next((held for name, held in letter.headers if name == "sluice"), None)
    if packed is None:
        raise InvalidInputError("sluice", "a hop without its header")
    _, name, app, *_ = orjson.loads(packed)
    return QueryKey(app, name[1], name[0]) if isinstance(name, list) else QueryKey(app, "", name)


def _record(letter: Letter, place: Written) -> Record:
    return Record(place.topic, place.partition, place.offset, letter.key, letter.value, letter.headers, 0.0)
