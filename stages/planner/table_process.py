"""A process that makes selection tables: questions as JSON in, tables out.

An answer is one byte, ``T`` and tables (each with its length) or ``E`` and what went wrong as text.
"""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from sluicegate.domain.errors import SluiceError
from sluicegate.domain.table import SelectionTable
from sluicegate.planner.policy_tables.table_codec import decode, encode
from sluicegate.planner.policy_tables.table_requests import LibraryRules
from sluicegate.planner.policy_tables.table_schedule import Make, make_tables
from sluicegate.stages.planner.asked_process import LENGTH, answer_questions


class Request(BaseModel):
    """What is asked of the process."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    make: Make
    rules: LibraryRules


def encode_request(make: Make, rules: LibraryRules) -> bytes:
    """For the process."""
    return Request(make=make, rules=rules).model_dump_json().encode()


def decode_answer(answer: bytes) -> tuple[SelectionTable, ...]:
    """The tables made. Raises SluiceError with what went wrong."""
    if answer[:1] != b"T":
        raise SluiceError(answer[1:].decode(errors="replace") or "no answer")
    tables, at = [], 1
    while at < len(answer):
        (length,) = LENGTH.unpack_from(answer, at)
        at += LENGTH.size + length
        tables.append(decode(answer[at - length : at]))
    return tuple(tables)


def answer_to(request: bytes) -> bytes:
    """Make the tables."""
    try:
        asked = Request.model_validate_json(request)
        return b"T" + _joined(make_tables(asked.make, asked.rules))
    except Exception as error:  # told to the parent, which logs it
        return f"E{type(error).__name__}: {error}".encode()


def _joined(tables: Sequence[SelectionTable]) -> bytes:
    return b"".join(LENGTH.pack(len(body)) + body for body in map(encode, tables))


if __name__ == "__main__":
    answer_questions(answer_to)
