"""The codec: records to domain values and back, one name each. Pure: no clock, no IO.

Queries are CloudEvents (Kafka binary mode) around Open Inference Protocol v2 bodies, JSON or JSON with raw tensors;
hops between stages are raw tensors under one compact header; results are Open Inference Protocol responses that say
why. Everything that comes from outside either decodes or raises InvalidInputError.
"""

from sluicegate.streams.records.cloudevents import (
    JSON_LENGTH_HEADER,
    MAX_CARRIED,
    TAKES_RAW,
    along,
    carried,
    query_headers,
    query_source_of,
    readable_traceparent,
    traceparent_in,
    with_traceparent,
)
from sluicegate.streams.records.codec_types import (
    DEFAULT_LIMITS,
    Limits,
    Message,
    QueryMessage,
    RejectedQueryError,
    TooLargeError,
    UnattributableError,
    WorkMessage,
)
from sluicegate.streams.records.dead_letters import (
    DUPLICATE_ID,
    UNREADABLE,
    dead_letter,
    dead_letter_origin,
    dead_letter_reason,
    letter_reason,
    with_replay,
)
from sluicegate.streams.records.hop_records import (
    admitted_key,
    carried_of_hop,
    content_of,
    content_of_query,
    decode_admitted,
    decode_work,
    encode_admitted,
    encode_work,
)
from sluicegate.streams.records.oip import check_data
from sluicegate.streams.records.outcomes import (
    OutcomeMessage,
    decode_outcome,
    encode_outcome,
    outcome_device,
    outcome_json,
    with_outputs,
)
from sluicegate.streams.records.queries import (
    carried_if_it_can_be,
    decode_query,
    encode_query,
    query_id_of,
    source_of_query,
)

__all__ = [
    "DEFAULT_LIMITS",
    "DUPLICATE_ID",
    "JSON_LENGTH_HEADER",
    "MAX_CARRIED",
    "TAKES_RAW",
    "UNREADABLE",
    "Limits",
    "Message",
    "OutcomeMessage",
    "QueryMessage",
    "RejectedQueryError",
    "TooLargeError",
    "UnattributableError",
    "WorkMessage",
    "admitted_key",
    "along",
    "carried",
    "carried_if_it_can_be",
    "carried_of_hop",
    "check_data",
    "content_of",
    "content_of_query",
    "dead_letter",
    "dead_letter_origin",
    "dead_letter_reason",
    "decode_admitted",
    "decode_outcome",
    "decode_query",
    "decode_work",
    "encode_admitted",
    "encode_outcome",
    "encode_query",
    "encode_work",
    "letter_reason",
    "outcome_device",
    "outcome_json",
    "query_headers",
    "query_id_of",
    "query_source_of",
    "readable_traceparent",
    "source_of_query",
    "traceparent_in",
    "with_outputs",
    "with_replay",
    "with_traceparent",
]
