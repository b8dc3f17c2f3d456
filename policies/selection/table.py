"""Runs what a selection table says for the queue's length and the head's slack (RAMSIS, EuroSys 2024).

Rules.
- The table in force is that of the lowest load that covers the load seen in the last half second (or told by
  ``qps``); within ``tolerance``, because half a second of arrivals is not exact. Tables are swapped as a whole, between
  batches.
- A batch runs at once: the policy never waits. What the table says runs only where it is still true here: the variant
  is hosted, and the head is on time by the curve of this slice.
- Otherwise the fastest variant takes as much of the queue as leaves its head in time, provided that one more batch of
  it can have the rest in time too.
- Where that is not so, and where no table covers the load, the fastest variant serves first come, first served, and
  drops early what would be late, so that batches stay large. A load above all tables is announced, so that one can be
  made for it.
"""

from bisect import bisect_left
from collections.abc import Sequence
from math import inf

from domain.actions import Announce, StationAction
from domain.errors import ConfigurationError
from domain.events import BatchingEvent, Hosted
from domain.outcome import Reason
from domain.query import Query
from domain.table import DROP, SelectionTable, TablesChanged
from policies.batching.early_drop import EarlyDrop
from policies.selection.load import LoadWindow


class TableSelection(EarlyDrop):
    """``tables``: of one worker class, any loads; those of other apps are passed over.

    ``qps``: load of the whole app, where it is known. ``window_s``: seconds over which it is estimated otherwise.
    ``tolerance``: by how much the estimate may exceed a table's load, relative. ``margin``: factor on the latencies of
    this slice, for executions that vary; tables should be made with the same. ``missing``: load that was seen and is
    covered by no table, else None.
    """

    name = "table"
    __slots__ = (
        "_by_load",
        "_codes",
        "_load",
        "_loads",
        "_qps",
        "_tables",
        "fastest",
        "missing",
        "table",
        "tolerance",
        "workers",
    )

    def __init__(
        self,
        *,
        tables: Sequence[SelectionTable] = (),
        qps: float | None = None,
        window_s: float = 0.5,
        tolerance: float = 0.05,
        margin: float = 1.0,
    ) -> None:
        super().__init__(margin=margin)
        if not 0.0 < window_s < inf or not 0.0 <= tolerance < inf or (qps is not None and not 0.0 <= qps < inf):
            raise ConfigurationError(
                f"table selection: window_s {window_s}, tolerance {tolerance}, qps {qps}; give a window above 0 and "
                "a tolerance and load of at least 0"
            )
        self._load = LoadWindow(window_s)
        self._qps = qps
        self.tolerance = tolerance
        self.fastest: Hosted | None = None
        self.table: SelectionTable | None = None
        self.missing: float | None = None
        self._codes: tuple[Hosted | None, ...] = ()
        self._by_load: tuple[SelectionTable, ...] = ()
        self._use(tables)

    def handle(self, event: BatchingEvent | TablesChanged, now: float) -> list[StationAction]:
        """Decide. TablesChanged replaces all tables; the next batch goes by the new ones."""
        if isinstance(event, TablesChanged):
            self._use(event.tables)
            return []
        return super().handle(event, now)

    @property
    def tables(self) -> tuple[SelectionTable, ...]:
        """By ascending load."""
        return self._by_load

    def decide(self, now: float, actions: list[StationAction]) -> None:
        """Run what the table says, or fall back."""
        self._choose(now, actions)
        table = self.table
        if table is None:
            super().decide(now, actions)
            return
        while self.queue.items:
            head = self.queue.items[0]
            code, batch = table.lookup(self.queue.rows, head.deadline - now)
            if code == DROP:
                self.drop_head(Reason.HOPELESS, actions)
                continue
            chosen = self._codes[code]
            rows = self.queue.fit(max(batch, head.rows))
            if chosen and rows <= chosen.curve.max_batch and self._in_time(chosen, rows, now, head):
                self.run(rows, actions, chosen)
            else:
                self._save(batch, now, actions)
            return

    def _in_time(self, chosen: Hosted, rows: int, now: float, head: Query) -> bool:
        return now + chosen.curve.seconds[rows - 1] * self.margin <= head.deadline

    def _save(self, limit: int, now: float, actions: list[StationAction]) -> None:
        """Run part of the queue on the fastest variant if the rest can be in time after it, else drop early."""
        rows = self.largest_on_time(limit, now)
        rest = self.queue.rows - rows
        if rest:
            ends = now + self.seconds[rows - 1]
            if rest > len(self.seconds) or ends + self.seconds[rest - 1] > self._deadline_after(rows):
                super().decide(now, actions)
                return
        self.run(rows, actions)

    def _deadline_after(self, rows: int) -> float:
        """Of the first query that a batch of ``rows`` leaves behind."""
        for query in self.queue.items:
            rows -= query.rows
            if rows < 0:
                return query.deadline
        return inf

    def arrived(self, query: Query, now: float, actions: list[StationAction]) -> None:
        """Count it."""
        super().arrived(query, now, actions)
        self._load.add(now, query.rows)

    def hosting_changed(self) -> None:
        """The fastest variant is what heads are saved with."""
        self.fastest = min(self.hosted, key=lambda h: (h.curve.seconds[0], -h.accuracy), default=None)
        if self.fastest is not None:
            self.seconds = self.fastest.curve.scaled(self.margin).seconds
            self.largest = max(1, self.fastest.curve.scaled(self.margin).largest_within(self.slo))
        self._adopt()
        self._resolve()

    def run_batch(
        self, batch: tuple[Query, ...], rows: int, actions: list[StationAction], hosted: Hosted | None = None
    ) -> None:
        """By default on the fastest variant."""
        super().run_batch(batch, rows, actions, hosted or self.fastest)

    def _use(self, tables: Sequence[SelectionTable]) -> None:
        self._tables = tuple(tables)
        self._adopt()

    def _adopt(self) -> None:
        """Of all tables, those of the app that is served here; a table without an app's name is for any."""
        mine = (t for t in self._tables if not t.app or not self.app or t.app == self.app)
        self._by_load = tuple(sorted(mine, key=lambda t: t.qps))
        self._loads = [t.qps for t in self._by_load]
        self.workers = self._by_load[0].workers if self._by_load else 1
        if any(t.workers != self.workers for t in self._by_load):
            raise ConfigurationError("table selection: tables are for different numbers of workers; give one library")
        self.table = None

    def _choose(self, now: float, actions: list[StationAction]) -> None:
        """The table for the load as it is now; a load that none covers is asked for once, and again when it grows."""
        load = self._qps if self._qps is not None else self._load.rate(now) * self.workers
        at = bisect_left(self._loads, load / (1.0 + self.tolerance))
        found = self._by_load[at] if at < len(self._by_load) else None
        if found is not None:
            self.missing = None
        elif self.missing is None or load > self.missing * (1.0 + self.tolerance):
            self.missing = load
            if not self._by_load:
                return  # without any table there is nothing that could be amiss with the load
            detail = f"no selection table covers {load:.4g} queries/s; the fastest variant serves"
            actions.append(Announce(f"app:{self.app}", "table_missing", detail, {"qps": load}))
        if found is not self.table:
            self.table = found
            self._resolve()

    def _resolve(self) -> None:
        """Variants of the table's codes, None where not hosted."""
        by_name = {h.variant: h for h in self.hosted}
        self._codes = tuple(by_name.get(name) for name in self.table.variants) if self.table else ()
