"""A client of Sluicegate, over Kafka topics or HTTP, that needs nothing of the server."""

__version__ = "0.2.0"  # of client and server: the one place that says it

from sluicegate_client.answers import Answer, Outcome, Status
from sluicegate_client.client import Client
from sluicegate_client.errors import ClientError, InvalidQueryError, NoOutcomeError, RefusedError
from sluicegate_client.security import Security
from sluicegate_client.tensors import Reference, Tensor

__all__ = [
    "Answer",
    "Client",
    "ClientError",
    "InvalidQueryError",
    "NoOutcomeError",
    "Outcome",
    "Reference",
    "RefusedError",
    "Security",
    "Status",
    "Tensor",
]
