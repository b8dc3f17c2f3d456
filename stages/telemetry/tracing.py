"""Traces across hops, where they are asked for: W3C context in records, spans at OpenTelemetry.

Rules.
- Off, a stage holds None and does nothing: no span, no header that was not there before.
- On, each hop makes one span a query, child of the context that the record brought, and sends its own context on:
  ``admit`` -> ``route`` -> ``serve``. A record without a context begins a trace, sampled at ``sample``.
- A batch has many parents: its span (``batch``) is a trace of its own with a link to each of its queries, and each
  query's ``serve`` links back to it.
- Spans are made when their times are known, at the end; nothing is open across an await.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.outcome import Outcome
from sluicegate.domain.query import QueryKey

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, SpanContext

_NS = 1_000_000_000
_OPEN_LIMIT = 100_000
"""Queries remembered between their arrival at a worker and their end: above it the oldest are forgotten."""


class Tracing:
    """Spans of one process, on an OpenTelemetry tracer."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry import trace

        self._provider = provider
        self._tracer = provider.get_tracer("sluicegate")
        self._trace = trace
        self._open: dict[QueryKey, str | None] = {}
        self._batches: dict[QueryKey, SpanContext] = {}

    def hop(
        self, name: str, traceparent: str | None, start: float, end: float, attributes: Mapping[str, Any]
    ) -> str | None:
        """A span of one query, ``start`` to ``end`` in wall seconds; the context to send on."""
        return self._ended(self._started(name, traceparent, start, attributes), end)

    def arrived(self, query: QueryKey, traceparent: str | None) -> None:
        """A query waits at this worker."""
        if len(self._open) >= _OPEN_LIMIT:
            del self._open[next(iter(self._open))]
        self._open[query] = traceparent

    def batch(self, queries: Iterable[QueryKey], start: float, end: float, attributes: Mapping[str, Any]) -> None:
        """A batch ran: its span, linked to those of its queries."""
        keys = tuple(queries)
        links = [
            self._trace.Link(context) for key in keys if (context := self._context(self._open.get(key))) is not None
        ]
        span = self._tracer.start_span(
            "batch",
            context=self._trace.set_span_in_context(self._trace.INVALID_SPAN),
            start_time=int(start * _NS),
            attributes=dict(attributes),
            links=links,
        )
        span.end(end_time=int(end * _NS))
        for key in keys:
            if key in self._open:
                self._batches[key] = span.get_span_context()

    def served(self, outcome: Outcome) -> str | None:
        """A query has ended at this worker; the context for its result."""
        traceparent = self._open.pop(outcome.key, None)
        batch = self._batches.pop(outcome.key, None)
        waited = outcome.queue_s + outcome.batch_s
        attributes = {
            "sluice.query_id": outcome.query_id,
            "sluice.app": outcome.app,
            "sluice.outcome": "late" if outcome.late else outcome.kind.value,
            "sluice.reason": outcome.reason or "",
            "sluice.variant": outcome.variant or "",
            "sluice.device": outcome.device or "",
            "sluice.batch_rows": outcome.batch_size,
            "sluice.queue_s": outcome.queue_s,
            "sluice.execution_s": outcome.execution_s,
        }
        span = self._started("serve", traceparent, outcome.at - waited, attributes)
        if batch is not None:
            span.add_link(batch)
        return self._ended(span, outcome.at)

    def forget(self, query: QueryKey) -> None:
        """A query that waited here goes elsewhere."""
        self._open.pop(query, None)
        self._batches.pop(query, None)

    def abandon(self) -> None:
        """All that waited here goes elsewhere."""
        self._open.clear()
        self._batches.clear()

    def close(self) -> None:
        """Send what was not sent yet."""
        self._provider.shutdown()

    def _started(self, name: str, traceparent: str | None, start: float, attributes: Mapping[str, Any]) -> "Span":
        context = self._context(traceparent)
        parent = self._trace.INVALID_SPAN if context is None else self._trace.NonRecordingSpan(context)
        span: Span = self._tracer.start_span(
            name,
            context=self._trace.set_span_in_context(parent),
            start_time=int(start * _NS),
            attributes=dict(attributes),
        )
        return span

    def _ended(self, span: "Span", end: float) -> str:
        span.end(end_time=int(end * _NS))
        context = span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def _context(self, traceparent: str | None) -> "SpanContext | None":
        """What a W3C header says, None where it says nothing valid."""
        parts = traceparent.split("-") if traceparent else []
        if len(parts) != 4:
            return None
        try:
            context = self._trace.SpanContext(
                int(parts[1], 16),
                int(parts[2], 16),
                is_remote=True,
                trace_flags=self._trace.TraceFlags(int(parts[3], 16)),
            )
        except ValueError:
            return None
        return context if context.is_valid else None


def tracing_to(endpoint: str, *, sample: float, service: str) -> Tracing:
    """Spans by OTLP over HTTP to ``endpoint``. Raises ConfigurationError where the extra is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigurationError("tracing.endpoint: needs the extra: pip install -e '.[otel]'") from error
    return tracing_with(OTLPSpanExporter(endpoint=endpoint), sample=sample, service=service)


def tracing_with(exporter: "SpanExporter", *, sample: float, service: str, at_once: bool = False) -> Tracing:
    """Spans to ``exporter``, in batches from a thread, or ``at_once``."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    provider = TracerProvider(
        resource=Resource({"service.name": service}),
        sampler=ParentBased(TraceIdRatioBased(sample)),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(SimpleSpanProcessor(exporter) if at_once else BatchSpanProcessor(exporter))
    return Tracing(provider)
