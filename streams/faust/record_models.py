"""Faust's Record models of what is on the topics, for agents of your own (extra ``faust``).

    topic = app.topic("sluice.app.digits.results", value_type=OutcomeTold)

Fields that a newer version adds are ignored. Times are wall seconds, durations seconds.
"""

from typing import Any

import faust


class QueryAsked(faust.Record, serializer="json"):  # type: ignore[misc,call-arg,unused-ignore]
    """A query of an app, by Open Inference Protocol v2: what producers write, and what admission lets through.

    Deadline, class and goal are in the CloudEvents headers (``event.headers``), not in the body.
    """

    inputs: list[Any]
    id: str | None = None
    parameters: dict[str, Any] = {}  # noqa: RUF012 - a field's default, copied by Faust


class OutcomeTold(faust.Record, serializer="json"):  # type: ignore[misc,call-arg,unused-ignore]
    """The one terminal outcome of a query. ``parameters``: kind, late, reason, variant, device, accuracy, times."""

    id: str
    model_name: str
    parameters: dict[str, Any]
    model_version: str | None = None
    outputs: list[Any] = []  # noqa: RUF012 - a field's default, copied by Faust

    @property
    def kind(self) -> str:
        """Answered, rejected, expired, dropped or failed."""
        return str(self.parameters["kind"])

    @property
    def source(self) -> str:
        """Who asked, "" where that is not told. A query is known by it, its app (``model_name``) and its ``id``."""
        return str(self.parameters.get("source", ""))

    @property
    def late(self) -> bool:
        """Whether it was answered after its deadline."""
        return bool(self.parameters["late"])


class PlanPublished(faust.Record, serializer="json"):  # type: ignore[misc,call-arg,unused-ignore]
    """A plan: which device hosts what, each one's share. ``epoch``: term, number. Topic ``….control.plan``."""

    epoch: list[int]
    placements: list[Any]
    demand: dict[str, float] = {}  # noqa: RUF012 - a field's default, copied by Faust
    served: dict[str, float] = {}  # noqa: RUF012 - a field's default, copied by Faust
    reason: str = ""


class DemandCounted(faust.Record, serializer="json"):  # type: ignore[misc,call-arg,unused-ignore]
    """Rows of ``app`` that came in the ``window`` seconds before ``at``. Topic ``….metrics.demand``."""

    app: str
    count: int
    window: float
    at: float
    classes: list[Any] = []  # noqa: RUF012 - a field's default, copied by Faust
    source: str = ""


class DemandWindows(faust.Record, serializer="json"):  # type: ignore[misc,call-arg,unused-ignore]
    """The last seconds of ``app`` by half seconds, totals. Topic ``….metrics.demand-windows``."""

    app: str
    halves: list[Any]
    at: float
