"""The queue that every batching policy shares: earliest deadline first, ties in arrival order.

Rules. Queries of one SLO arrive in the order of their deadlines, so that appending is O(1); a query that is more urgent
than the last one is put in its place by bisection. A batch is always a prefix of the queue, and its size is counted in
rows: a query of r rows takes r places.
"""

from bisect import bisect_right
from collections import deque
from operator import attrgetter
from sys import maxsize

from sluicegate.domain.query import Query

_by_deadline = attrgetter("deadline")


class DeadlineQueue:
    """Queries waiting. ``items``: read it, change it through the methods only. ``rows``: rows waiting in all."""

    __slots__ = ("items", "rows")

    def __init__(self) -> None:
        self.items: deque[Query] = deque()
        self.rows = 0

    def __len__(self) -> int:
        return len(self.items)

    def push(self, query: Query) -> None:
        """Put ``query`` behind all that are at least as urgent."""
        items = self.items
        if items and query.deadline < items[-1].deadline:
            items.insert(bisect_right(items, query.deadline, key=_by_deadline), query)
        else:
            items.append(query)
        self.rows += query.rows

    def pop(self) -> Query:
        """Take the head out. Raises IndexError when empty."""
        query = self.items.popleft()
        self.rows -= query.rows
        return query

    def remove(self, index: int) -> Query:
        """Take the query at ``index`` (0 is the head) out."""
        items = self.items
        query = items[index]
        del items[index]
        self.rows -= query.rows
        return query

    def fit(self, limit: int) -> int:
        """Rows of the longest prefix that has at most ``limit`` rows."""
        items = self.items
        if self.rows <= limit:
            return self.rows
        if self.rows == len(items):
            return limit
        rows = 0
        for query in items:
            if rows + query.rows > limit:
                break
            rows += query.rows
        return rows

    def take(self, limit: int) -> tuple[Query, ...]:
        """Take out the longest prefix that has at most ``limit`` rows."""
        items = self.items
        if self.rows <= limit:
            batch = tuple(items)
            items.clear()
            self.rows = 0
            return batch
        popleft = items.popleft
        if self.rows == len(items):
            self.rows -= limit
            return tuple([popleft() for _ in range(limit)])
        taken: list[Query] = []
        while items and items[0].rows <= limit:
            query = popleft()
            limit -= query.rows
            self.rows -= query.rows
            taken.append(query)
        return tuple(taken)

    def spans(self, limit: int) -> list[tuple[int, int]]:
        """How long a batch's inputs get as it takes more of the first ``limit`` rows: (rows up to, their longest).

        Both ascend; beyond the queue its longest holds. A length that is not known is beyond any.
        """
        found: list[tuple[int, int]] = []
        rows = longest = 0
        for query in self.items:
            if rows >= limit:
                break
            length = query.length or maxsize
            if length > longest:
                if rows:
                    found.append((rows, longest))
                longest = length
            rows += query.rows
        found.append((limit, longest))
        return found

    def clear(self) -> tuple[Query, ...]:
        """Take everything out."""
        return self.take(self.rows)
