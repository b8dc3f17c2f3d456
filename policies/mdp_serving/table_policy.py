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
  made for it, and so is its end.
- Where the table tells phases apart, the phase is what the router's count of turns says, and load and time since.
- What became of queries while a table was in force is counted, so that whoever made it can see whether it holds.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import inf, isclose

from typing_extensions import override

from sluicegate.domain.actions import Announce, Run, StationAction
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import Arrived, BatchingEvent, Finished, Hosted, TurnsTold
from sluicegate.domain.outcome import Reason
from sluicegate.domain.query import Query
from sluicegate.domain.table import DROP, SelectionTable, TableObserved, TablesChanged
from sluicegate.policies.batching.early_drop import EarlyDrop
from sluicegate.policies.mdp_serving.load_estimator import LoadWindow
from sluicegate.policies.mdp_serving.round_robin_phase import Turns
from sluicegate.policies.mdp_serving.table_statistics import Observing

_AGAIN = 5.0
"""Seconds between two words on a load that is missing."""
_GROWN = 1.2
"""Unless it has grown by this factor."""


class TableSelection(EarlyDrop):
    """Runs what a selection table says. ``tables``: of one worker class, any loads; those of other apps and SLO classes
    are passed over.

    ``qps``: load of the whole app, where it is known. ``window_s``: seconds over which it is estimated otherwise.
    ``tolerance``: by how much the estimate may exceed a table's load, relative. ``margin``: factor on the latencies of
    this slice, for executions that vary; tables should be made with the same. ``guard_s``: seconds kept back for what
    happens around an execution; tables should be made for an SLO that is as much shorter. ``missing``: load that was
    seen and is covered by no table, else None; ``asked``: when that was announced.
    """

    name = "table"
    __slots__ = (
        "_asked_for",
        "_by_load",
        "_codes",
        "_load",
        "_loads",
        "_observing",
        "_qps",
        "_share",
        "_tables",
        "_turns",
        "asked",
        "fastest",
        "guard",
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
        guard_s: float = 0.0,
    ) -> None:
        super().__init__(margin=margin)
        at_least_0 = (tolerance, guard_s, qps if qps is not None else 0.0)
        if not 0.0 < window_s < inf or not all(0.0 <= value < inf for value in at_least_0):
            raise ConfigurationError(
                f"table selection: window_s {window_s}, tolerance {tolerance}, qps {qps}, guard_s {guard_s}; give a "
                "window above 0 and others of at least 0"
            )
        self._load = LoadWindow(window_s)
        self._qps = qps
        self.tolerance = tolerance
        self.guard = guard_s
        self._observing = Observing(guard_s)
        self.fastest: Hosted | None = None
        self.table: SelectionTable | None = None
        self.missing: float | None = None
        self.asked: float | None = None
        self._asked_for = 0.0
        self._turns = Turns()
        self._codes: tuple[Hosted | None, ...] = ()
        self._by_load: tuple[SelectionTable, ...] = ()
        self.use(tables)
        if any(t.workers != self.workers for t in self._tables if self._is_mine(t)):
            raise ConfigurationError("table selection: tables are for different numbers of workers; give one library")

    @override
    def handle(self, event: BatchingEvent | TablesChanged, now: float) -> list[StationAction]:
        """Decide. TablesChanged replaces all tables; the next batch goes by the new ones."""
        if isinstance(event, TablesChanged):
            self.use(event.tables)
            return []
        if isinstance(event, Arrived):
            self._turns.arrived(event.turn, now)
        return super().handle(event, now)

    @property
    def tables(self) -> tuple[SelectionTable, ...]:
        """By ascending load."""
        return self._by_load

    @override
    def prune(self, now: float, actions: list[StationAction]) -> None:
        """Choose the table, which what is given up counts for."""
        self._choose(now, actions)
        super().prune(now, actions)

    @override
    def decide(self, now: float, actions: list[StationAction]) -> None:
        """Run what the table says, or fall back."""
        self._observing.began = now
        table = self.table
        if table is None:
            super().decide(now, actions)
            return
        while self.queue.items:
            head = self.queue.items[0]
            phase = table.phase_of(self._turns.elsewhere(self._rate(now), now)) if table.phases > 1 else 0
            code, batch = table.lookup(self.queue.rows, head.deadline - now - self.guard, phase)
            if code == DROP:
                self.drop_head(Reason.SHED, actions)
                continue
            chosen = self._codes[code]
            rows = self.queue.fit(max(batch, head.rows))
            if chosen and rows <= chosen.curve.max_batch and self._in_time(chosen, rows, now, head):
                self.run(rows, actions, chosen)
            else:
                self._save(batch, now, actions)
            return

    def turned(self, told: TurnsTold) -> None:
        """The router has given so many turns; those of other SLO classes are not ours."""
        if told.slo == 0.0 or isclose(told.slo, self.slo):
            self._turns.told(told.count, told.at)

    def _rate(self, now: float) -> float:
        """Queries a second of the whole app."""
        return self._qps if self._qps is not None else self._load.rate(now) / self._share

    def _in_time(self, chosen: Hosted, rows: int, now: float, head: Query) -> bool:
        return now + chosen.curve.seconds[rows - 1] * self.margin + self.guard <= head.deadline

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

    @override
    def arrived(self, query: Query, now: float, actions: list[StationAction]) -> None:
        """Count it."""
        super().arrived(query, now, actions)
        self._load.add(now, query.rows)
        self._observing.arrived(query, now)

    @override
    def finished(self, event: Finished, run: Run, now: float, actions: list[StationAction]) -> None:
        """Count what was in time."""
        known = (*(h for h in self._codes if h is not None), *self.hosted)
        hosted = next((h for h in known if h.variant == run.variant), None)
        if hosted is not None and not event.failed:
            self._observing.finished(run, hosted, now)

    @override
    def missed(self, query: Query, actions: list[StationAction]) -> None:
        """Count it."""
        super().missed(query, actions)
        self._observing.missed(query.rows)

    def take_observed(self, now: float) -> tuple[TableObserved, ...]:
        """What was seen under each table since the last call."""
        return self._observing.take(now)

    @override
    def hosting_changed(self) -> None:
        """The fastest variant is what heads are saved with."""
        self.fastest = min(self.hosted, key=lambda h: (h.curve.seconds[0], -h.accuracy), default=None)
        if self.fastest is not None:
            self.seconds = self.fastest.curve.scaled(self.margin).seconds
            self.largest = max(1, self.fastest.curve.scaled(self.margin).largest_within(self.slo))
        self._adopt()
        self._resolve()

    @override
    def run_batch(
        self, batch: tuple[Query, ...], rows: int, actions: list[StationAction], hosted: Hosted | None = None
    ) -> None:
        """By default on the fastest variant."""
        super().run_batch(batch, rows, actions, hosted or self.fastest)

    def use(self, tables: Sequence[SelectionTable]) -> None:
        """Replace all tables; the next batch goes by the new ones."""
        self._tables = tuple(tables)
        self._adopt()

    def _adopt(self) -> None:
        """Of all tables, those of the app and SLO class that is served here; one without an app's name is for any.

        A planner's are for one number of workers. Where others came among them, the number that most are for counts,
        and of equals the least: such tables leave each worker the most to do.
        """
        mine = [t for t in self._tables if self._is_mine(t)]
        listed = Counter(t.workers for t in mine)
        self.workers = min(listed, key=lambda workers: (-listed[workers], workers), default=1)
        self._by_load = tuple(sorted((t for t in mine if t.workers == self.workers), key=lambda t: t.qps))
        self._loads = [t.qps for t in self._by_load]
        self._share = self._by_load[0].share if self._by_load else 1.0
        self.table = None

    def _is_mine(self, table: SelectionTable) -> bool:
        if table.app and self.app and table.app != self.app:
            return False
        return "slo_class" not in table.assumptions or isclose(table.slo_class, self.slo)

    def _choose(self, now: float, actions: list[StationAction]) -> None:
        """The table for the load as it is now; a load that none covers is asked for once, and again when it grows."""
        load = self._rate(now)
        at = bisect_left(self._loads, load / (1.0 + self.tolerance))
        found = self._by_load[at] if at < len(self._by_load) else None
        if found is not None:
            if self.asked is not None and now - self.asked > _AGAIN:
                self.asked = None
                self._say(
                    "table_found", f"a selection table for {found.qps:.4g} queries/s covers the load", load, actions
                )
            self.missing = None
        else:
            self._miss(load, now, actions)
        if found is None or found is not self.table:  # tables may be withdrawn: then there is none already
            self.table = found
            self._observing.under(found, now)
            self._resolve()

    def _miss(self, load: float, now: float, actions: list[StationAction]) -> None:
        """Without any table there is nothing that could be amiss with the load."""
        self.missing = load
        due = self.asked is None or now - self.asked > _AGAIN or load > _GROWN * self._asked_for
        if self._by_load and due:
            self.asked, self._asked_for = now, load
            detail = f"no selection table covers {load:.4g} queries/s; the fastest variant serves"
            self._say("table_missing", detail, load, actions)

    def _say(self, state: str, detail: str, load: float, actions: list[StationAction]) -> None:
        data: dict[str, float | str] = {"qps": load, "slo": self.slo, "worker_class": self._by_load[0].worker_class}
        actions.append(Announce(f"tables:{self.app}", state, detail, data))

    def _resolve(self) -> None:
        """Variants of the table's codes, None where not hosted, with the latencies that were measured."""
        if self.table is None:
            self._codes = ()
            return
        slowdown = {name: float(self.table.assumptions.get(f"slowdown.{name}", 1.0)) for name in self.table.variants}
        by_name = {h.variant: replace(h, curve=h.curve.scaled(slowdown.get(h.variant, 1.0))) for h in self.hosted}
        self._codes = tuple(by_name.get(name) for name in self.table.variants)
