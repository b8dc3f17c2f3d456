"""The queries that a worker has read, with their records and tensors, until what ends them is on its way.

What a record leads to is one letter: a result, a dead letter, or the query itself on its way back to the routers.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.outcome import Outcome, OutcomeKind, PromiseState, Reason
from sluicegate.domain.plan import NO_EPOCH
from sluicegate.domain.query import Query, QueryKey
from sluicegate.policies.serving.device_actions import Answer, End
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.runtime.background_tasks import BackgroundTasks
from sluicegate.stages.runtime.consumer_loop import Intake
from sluicegate.stages.runtime.exactly_once import Instead
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.stages.telemetry.telemetry import Telemetry, buried
from sluicegate.stages.worker.objects import WorkerObjects
from sluicegate.stages.worker.slice_runner import Outputs
from sluicegate.streams.objects.store import ObjectError
from sluicegate.streams.ports import Headers, Letter, Record
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Came:
    """A query that was read, ``since`` when, and what its batch has put out; ``fetched``: its tensors, where some lie
    elsewhere."""

    record: Record
    message: codec.WorkMessage
    since: float
    outputs: Outputs = ()
    fetched: tuple[Tensor, ...] | None = None


class Answers:
    """Of ``device``. ``policy``: the batching rule's name. ``intake``: what the records are read by, while they are.
    ``failed`` is told what keeping a result fails of, unless the store says so itself."""

    def __init__(
        self,
        device: str,
        policy: str,
        *,
        catalogue: Catalogue,
        outbox: Outbox,
        topics: Topics,
        telemetry: Telemetry,
        objects: WorkerObjects,
        failed: Callable[[BaseException], None],
    ) -> None:
        self.intake: Intake | None = None
        self._device = device
        self._stage = f"worker {device}"
        self._policy = policy
        self._catalogue = catalogue
        self._best = {app: catalogue.best_accuracy(app) for app in catalogue.apps}
        self._outbox = outbox
        self._topics = topics
        self._meters, self._tracing = telemetry.meters, telemetry.tracing
        self._came: dict[Query, _Came] = {}
        self._objects = objects
        self._keeping = BackgroundTasks(self._stage, failed)

    def registered(self, served: Catalogue) -> None:
        """Other apps or variants are served from now on; the catalogue handed at the start knows them already."""
        self._best |= {app: served.best_accuracy(app) for app in served.apps}

    def read(self, record: Record, now: float) -> codec.WorkMessage | None:
        """A record of the work topic; None where it cannot be understood, which is answered."""
        try:
            message = codec.decode_work(record)
        except InvalidInputError as error:
            self._bury(record, error, now)
            return None
        self._came[message.query] = _Came(record, message, now)
        if self._tracing is not None:
            self._tracing.arrived(message.query.key, codec.traceparent_in(message.carried))
        return message

    def holds(self, query: Query) -> bool:
        """Whether ``query`` is here still: it may have been abandoned meanwhile."""
        return query in self._came

    def refused(self, query: Query, error: InvalidInputError, now: float) -> None:
        """What was read was none of ours."""
        if self._tracing is not None:
            self._tracing.forget(query.key)
        self._bury(self._pop(query).record, error, now)

    def _bury(self, record: Record, error: InvalidInputError, now: float) -> None:
        if self.intake is not None:
            self.intake.answer(record, self._outbox, self.buried(record, error, now))

    def buried(self, record: Record, error: InvalidInputError, now: float) -> Letter:
        """The dead letter of a record."""
        return buried(record, error, stage=self._stage, now=now, topics=self._topics, meters=self._meters)

    def inputs(self, query: Query) -> Sequence[Tensor] | None:
        """A query's tensors; None for one that was abandoned meanwhile."""
        came = self._came.get(query)
        if came is None:
            return None
        return came.message.tensors if came.fetched is None else came.fetched

    async def fetch(self, query: Query, now: float) -> str | None:
        """Read what a query refers to; why that cannot be had, "" where it is here, None where it was abandoned."""
        came, flaw = self._came.get(query), ""
        if came is None:
            return None
        try:
            fetched = await self._objects.fetched(came.message, query.deadline - now)
        except ObjectError as error:
            fetched, flaw = None, str(error)[:500]
        if self._came.get(query) is came:
            came.fetched = fetched
            return flaw
        if fetched is not None:
            self._objects.release(came.message)
        return None

    def contents(self) -> tuple[tuple[QueryKey, str], ...]:
        """Digests of what all queries hold that are here."""
        held = self._came.items()
        return tuple((query.key, codec.content_of(came.record, came.message.claims)) for query, came in held)

    def ran(self, query: Query, outputs: Outputs) -> None:
        """What its batch has put out for a query."""
        came = self._came.get(query)
        if came is not None:
            came.outputs = outputs

    def abandon(self) -> None:
        """Others answer all that was read."""
        for query in tuple(self._came):
            self._pop(query)
        self._keeping.cancel()
        if self._tracing is not None:
            self._tracing.abandon()
        if self.intake is not None:
            self.intake.abandon()

    async def close(self) -> None:
        """Nothing more is kept in the object store."""
        self._keeping.cancel()
        await self._keeping.over()

    def answered(self, answer: Answer) -> None:
        """Queries of a batch were answered."""
        run, started = answer.run, answer.started
        accuracy = self._catalogue.variants[run.variant].accuracy
        for number, query in enumerate(answer.queries):
            came = self._pop(query)
            outcome = Outcome.of(
                query,
                OutcomeKind.ANSWERED,
                answer.at,
                variant=run.variant,
                accuracy=accuracy,
                batch_size=run.rows,
                queue_s=started - came.since,
                batch_s=answer.at - started,
                execution_s=answer.execution_s,
                **self._where(came, answer.part, answer.promises[number] if answer.promises else None),
            )
            self._write(came, outcome)

    def ended(self, end: End) -> None:
        """A query has ended otherwise."""
        came = self._pop(end.query)
        run, started = end.run, end.started
        outcome = Outcome.of(
            end.query,
            end.kind,
            end.at,
            reason=end.reason,
            detail=end.detail,
            variant=run.variant if run else None,
            batch_size=run.rows if run else 0,
            queue_s=(end.at if started is None else started) - came.since,
            batch_s=0.0 if started is None else end.at - started,
            **self._where(came, end.part, end.promise),
        )
        self._write(came, outcome)

    def sent_back(self, query: Query) -> None:
        """A query is for another device."""
        came = self._pop(query)
        message = came.message
        self._meters.add("sluice_queries_sent_back", self._device)
        if self._tracing is not None:
            self._tracing.forget(query.key)
        back = codec.encode_admitted(codec.QueryMessage(query, message.tensors, message.carried, message.claims))

        def instead(error: InvalidInputError) -> Letter:
            waited = max(0.0, came.since - query.arrival)
            outcome = Outcome.of(query, OutcomeKind.FAILED, came.since, device=self._device, queue_s=waited)
            return self._failed(outcome, Reason.TOO_LARGE, error, message.carried)

        self._send(came.record, self._topics.admitted(query.app), back, instead)

    def repeated(self, query: Query) -> None:
        """A query is here a second time: its first record is answered, this one leads to nothing."""
        came = self._pop(query)
        log.info("query %s of %s came twice; it is one", query.id, query.app, extra={"record": came.record.place})
        if self._tracing is not None:
            self._tracing.forget(query.key)
        if self.intake is not None:
            self.intake.ignore(came.record)

    def _pop(self, query: Query) -> _Came:
        came = self._came.pop(query)
        if came.fetched is not None:
            self._objects.release(came.message)
        return came

    def _where(self, came: _Came, part: str, promise: PromiseState | None) -> dict[str, object]:
        epoch = came.message.epoch
        return {
            "best_accuracy": self._best.get(came.message.query.app, 1.0),
            "device": self._device,
            "slice": part,
            "epoch": epoch if epoch != NO_EPOCH else None,
            "policy": self._policy,
            "promise": promise,
        }

    def _write(self, came: _Came, outcome: Outcome) -> None:
        if outcome.promise is not None and outcome.promise.left:
            least = min(left for _, left in outcome.promise.left)
            self._meters.set("sluice_misses_left", float(least), outcome.app, self._device)
        carried = came.message.carried
        if self._tracing is not None:
            carried = codec.with_traceparent(carried, self._tracing.served(outcome))
        message = codec.encode_outcome(outcome, came.outputs, carried=carried)

        def instead(error: InvalidInputError) -> Letter | None:
            if self._objects.keeps_results and came.outputs:
                self._keeping.begin(self._keep(came, outcome, carried, error))
                return None
            told = InvalidInputError(error.field, f"{error.problem}; objects.results, where set, keeps larger ones")
            return self._failed(outcome, Reason.RESULT_TOO_LARGE, told, carried)

        self._send_outcome(came, outcome, message, instead)

    async def _keep(self, came: _Came, outcome: Outcome, carried: Headers, error: InvalidInputError) -> None:
        """A result that its topic does not take goes to the object store, and its outcome says where; or it fails."""
        try:
            claims = await self._objects.kept(outcome.app, came.outputs)
        except ObjectError as unkept:
            told = InvalidInputError(error.field, f"{error.problem}; and objects.results: {unkept}")
            if self.intake is not None:
                failed = self._failed(outcome, Reason.RESULT_TOO_LARGE, told, carried)
                self.intake.answer(came.record, self._outbox, failed)
            return
        message = codec.encode_outcome(outcome, came.outputs, carried=carried, claims=claims)

        def instead(still: InvalidInputError) -> Letter:
            return self._failed(outcome, Reason.RESULT_TOO_LARGE, still, carried)

        self._send_outcome(came, outcome, message, instead)

    def _send_outcome(self, came: _Came, outcome: Outcome, message: codec.Message, instead: Instead) -> None:
        """It counts once it is written: what its topic does not take ends otherwise."""

        def written() -> None:
            self._meters.ended(self._stage, outcome)

        self._send(came.record, self._topics.results(outcome.app), message, instead, written)

    def _failed(self, outcome: Outcome, reason: Reason, error: InvalidInputError, carried: Headers) -> Letter:
        """What is said in the place of a record that its topic does not take."""
        detail = error.problem[:500]
        failed = replace(outcome, kind=OutcomeKind.FAILED, reason=reason, detail=detail, accuracy=0.0)
        log.warning("%s: %s", reason, error.problem, extra={"query_ids": [outcome.query_id]})
        self._meters.ended(self._stage, failed)
        message = codec.encode_outcome(failed, (), carried=carried)
        return Letter(self._topics.results(outcome.app), message.value, message.key, message.headers)

    def _send(
        self,
        record: Record,
        topic: str,
        message: codec.Message,
        instead: Instead | None = None,
        written: Callable[[], None] | None = None,
    ) -> None:
        if self.intake is not None:
            letter = Letter(topic, message.value, message.key, message.headers)
            self.intake.answer(record, self._outbox, letter, instead, written)
