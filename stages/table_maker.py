"""A process that makes selection tables: length-prefixed pickles on its standard input and output.

Only its own parent talks to it, over pipes. It ends when its input does: a parent that dies leaves nothing behind.
"""

import os
import pickle
import struct
import sys

from planner.tables.publishing import make_tables

NICE = 5
LENGTH = struct.Struct(">I")


def main() -> None:
    """Answer requests (``Make``, ``LibraryRules``) until the input ends: tables, or what went wrong as text."""
    os.nice(NICE)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while len(head := source.read(LENGTH.size)) == LENGTH.size:
        make, rules = pickle.loads(source.read(*LENGTH.unpack(head)))  # noqa: S301 - from our own parent
        try:
            answer: object = make_tables(make, rules)
        except Exception as error:  # told to the parent, which logs it
            answer = f"{type(error).__name__}: {error}"
        body = pickle.dumps(answer)
        sink.write(LENGTH.pack(len(body)) + body)
        sink.flush()


if __name__ == "__main__":
    main()
