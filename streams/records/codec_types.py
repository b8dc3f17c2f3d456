"""What the codec takes and gives: values, limits, and errors split by what can be said of the query."""

from collections.abc import Mapping
from dataclasses import dataclass

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.outcome import Reason
from sluicegate.domain.plan import Epoch
from sluicegate.domain.query import Query
from sluicegate.streams.objects.claims import NO_OBJECTS, Claim, ObjectRules
from sluicegate.streams.ports import Headers


@dataclass(frozen=True, slots=True)
class Limits:
    """What a query may ask. Sizes in bytes, times in seconds.

    ``max_element_bytes``: of one element of a BYTES input. ``objects``: what a query may refer to.
    ``max_skew_s``: how far a producer's clock may be off before its timestamp is corrected to that bound.
    ``priorities``: the highest priority of each source (or front), 0 of others; None: any may ask for any.
    """

    max_body_bytes: int = 1_000_000
    max_element_bytes: int = 1_000_000
    max_skew_s: float = 5.0
    max_latency_s: float = 600.0
    objects: ObjectRules = NO_OBJECTS
    priorities: Mapping[str, int] | None = None


DEFAULT_LIMITS = Limits()


@dataclass(slots=True)
class Message:
    """A record to be sent."""

    value: bytes | None
    key: bytes | None
    headers: Headers = ()


Claims = tuple[tuple[int, Claim], ...]
"""Of the tensors that lie in an object store, by their place among a message's: their data is empty there."""


@dataclass(slots=True)
class QueryMessage:
    """A query and its tensors; ``carried``: headers that come back with its outcome. Treat as frozen."""

    query: Query
    tensors: tuple[Tensor, ...]
    carried: Headers = ()
    claims: Claims = ()


@dataclass(slots=True)
class WorkMessage:
    """A routed query: by which epoch, to which slice, as which of the router's turns (-1: not counted).

    Treat as frozen.
    """

    query: Query
    tensors: tuple[Tensor, ...]
    epoch: Epoch
    slice: str
    carried: Headers
    turn: int
    claims: Claims


class UnattributableError(InvalidInputError):
    """Wrong, and without a readable id: only a dead letter can tell of it."""


class RejectedQueryError(InvalidInputError):
    """Wrong, but of a known query: it gets a rejected outcome."""

    def __init__(
        self, error: InvalidInputError, *, query_id: str, source: str, app: App, arrival: float, reason: Reason
    ) -> None:
        super().__init__(error.field, error.problem)
        self.reason = reason
        self.query = Query(
            query_id, app.name, arrival, arrival + app.slo, query_class=app.query_class, stream=app.name, source=source
        )
        """As far as it is known. Class and SLO are the app's: the query's are not trusted."""


class TooLargeError(InvalidInputError):
    """Over a limit on size: understood so far as to know its reason."""
