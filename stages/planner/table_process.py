"""A process that makes selection tables: questions as JSON on its standard input, tables on its standard output.

Each message begins with its length. An answer is one byte, ``T`` and tables (each with its length) or ``E`` and what
went wrong as text. It ends when its input does: a parent that dies leaves nothing behind.
"""

import os
import struct
import sys
from collections.abc import Sequence

from pydantic import BaseModel

from sluicegate.domain.errors import SluiceError
from sluicegate.domain.table import SelectionTable
from sluicegate.planner.policy_tables.table_codec import decode, encode
from sluicegate.planner.policy_tables.table_library import LibraryRules
from sluicegate.planner.policy_tables.table_schedule import Make, make_tables

NICE = 2
LENGTH = struct.Struct(">I")


class Request(BaseModel):
    """What is asked of the process."""

    make: Make
    rules: LibraryRules


def encode_request(make: Make, rules: LibraryRules) -> bytes:
    """With its length."""
    return _framed(Request(make=make, rules=rules).model_dump_json().encode())


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
    """Make the tables; with its length."""
    try:
        asked = Request.model_validate_json(request)
        return _framed(b"T" + _joined(make_tables(asked.make, asked.rules)))
    except Exception as error:  # told to the parent, which logs it
        return _framed(f"E{type(error).__name__}: {error}".encode())


def main() -> None:
    """Answer requests until the input ends."""
    os.nice(NICE)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while len(head := source.read(LENGTH.size)) == LENGTH.size:
        sink.write(answer_to(source.read(*LENGTH.unpack(head))))
        sink.flush()


def _joined(tables: Sequence[SelectionTable]) -> bytes:
    return b"".join(_framed(encode(table)) for table in tables)


def _framed(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


if __name__ == "__main__":
    main()
