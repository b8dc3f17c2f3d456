"""Accuracy that rounding lost: single units change host as long as that helps and nobody is served less.

Rules:
- Given counts, apps are independent. What a unit more of a host is worth to its app, and what a unit less costs it, is
  therefore known host by host; a move from one app to another is worth the sum. Within an app every swap is tried.
- A move takes idle units, or units of another host of the same pool, in steps of ``chunk``. The best one is made, then
  what changed is looked at anew, until no move gains or ``moves`` were made. No demand is ever served less.
- Loads and money count as they do in the program's objective, and idle units only as far as the budget goes. Where
  money counts, units that bring less than they cost are given back. Programs with a cap on loads or a core on demand,
  and those where a host answers several apps, are left as they are.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sluicegate.planner.allocation.program import Floats, Ints, Program
from sluicegate.planner.allocation.rounding import Whole, evaluate

_EPS = 1e-9
_NEVER = -np.inf


class _Move(NamedTuple):
    """Units that change hosts. ``giver``: None where the units are idle; ``target``: None where they become so."""

    gain: float
    giver: int | None
    target: int | None


def improved(program: Program, whole: Whole, *, chunk: int = 1, moves: int = 200) -> Whole:
    """``whole`` or better: no demand is served less, and the value is not lower."""
    if not program.independent or program.max_loads is not None or program.strict_on_demand > 0 or not program.hosts:
        return whole
    state = _State(program, whole.units, chunk)
    for _ in range(moves):
        move = state.best()
        if move is None:
            break
        state.make(move)
    found = evaluate(program, state.units)
    return found if found.beats(whole) else whole


@dataclass(slots=True)
class _App:
    """Hosts of an app, and its demands in the order in which they are filled.

    ``lane_host``: position in ``hosts``, by lane; ``accuracy``: by lane. ``fill``: by demand, lanes by accuracy, and
    units that the whole demand takes there.
    """

    hosts: Ints
    lane_host: Ints
    accuracy: Floats
    pool: Ints
    fill: list[tuple[float, Ints, Floats]]

    def value(self, counts: Floats) -> tuple[Floats, Floats]:
        """Accuracy over all demand and served fractions, by row of ``counts`` (rows x hosts)."""
        free = counts[:, self.lane_host]
        value = np.zeros(len(counts))
        served = np.zeros((len(counts), len(self.fill)))
        for d, (weight, order, need) in enumerate(self.fill):
            reach = np.minimum(np.cumsum(free[:, order] / need, axis=1), 1.0)
            took = np.diff(reach, axis=1, prepend=0.0)
            free[:, order] = np.maximum(0.0, free[:, order] - took * need)
            value += weight * (took @ self.accuracy[order])
            served[:, d] = reach[:, -1] if len(order) else 0.0
        return value, served


class _State:
    """Counts, and by app what its best changes are worth; only apps that changed are looked at again."""

    def __init__(self, program: Program, units: Ints, chunk: int) -> None:
        self._program = program
        self._chunk = chunk
        self.units = units.copy()
        self._apps = _apps(program)
        shape = (len(self._apps), len(program.pools))
        self._idle = program.pool_count - np.bincount(
            program.host_pool, weights=units, minlength=len(program.pools)
        ).astype(np.int64)
        self._more = np.full(shape, _NEVER)
        self._less = np.full(shape, _NEVER)
        self._swap = np.full(shape, _NEVER)
        self._target = np.zeros(shape, dtype=np.int64)
        self._giver = np.zeros(shape, dtype=np.int64)
        self._pair: dict[tuple[int, int], tuple[int, int]] = {}
        self._load_price = program.load_price
        self._money = program.money_weight * program.rent
        for a in range(len(self._apps)):
            self._look(a)

    def best(self) -> _Move | None:
        """The best move there is; None where none gains."""
        found: list[_Move] = []
        for p in range(len(self._program.pools)):
            giving, getting = int(np.argmax(self._less[:, p])), int(np.argmax(self._more[:, p]))
            if self._idle[p] >= self._chunk and self._affordable(p):
                found.append(_Move(float(self._more[getting, p]), None, int(self._target[getting, p])))
            if self._program.money_weight > 0:
                found.append(_Move(float(self._less[giving, p]), int(self._giver[giving, p]), None))
            if giving == getting:
                others = np.delete(np.arange(len(self._apps)), giving)
                pairs = [(giving, int(b)) for b in others] + [(int(a), getting) for a in others]
            else:
                pairs = [(giving, getting)]
            for a, b in pairs:
                gain = float(self._less[a, p] + self._more[b, p])
                found.append(_Move(gain, int(self._giver[a, p]), int(self._target[b, p])))
            a = int(np.argmax(self._swap[:, p]))
            if self._swap[a, p] > _EPS:
                found.append(_Move(float(self._swap[a, p]), *self._pair[a, p]))
        move = max(found, key=lambda m: m.gain, default=None)
        return move if move is not None and move.gain > _EPS else None

    def _affordable(self, pool: int) -> bool:
        p = self._program
        if p.budget is None:
            return True
        spent = float(p.rent @ self.units) + self._chunk * p.pools[pool].price
        return spent <= p.budget * (1 + 1e-9)

    def make(self, move: _Move) -> None:
        """Move units and look again at the apps concerned."""
        pools = self._program.host_pool
        if move.target is not None:
            self.units[move.target] += self._chunk
            self._idle[pools[move.target]] -= self._chunk
        if move.giver is not None:
            self.units[move.giver] -= self._chunk
            self._idle[pools[move.giver]] += self._chunk
        for a, app in enumerate(self._apps):
            if move.target in app.hosts or move.giver in app.hosts:
                self._look(a)

    def _look(self, a: int) -> None:
        """What a chunk more, a chunk less and each swap is worth to app ``a``, the best by pool."""
        app = self._apps[a]
        now = self.units[app.hosts].astype(np.float64)
        steps = np.eye(len(app.hosts)) * self._chunk
        value, served = app.value(np.vstack((now, now + steps)))
        base, least = float(value[0]), served[0] - _EPS
        more = value[1:] - base - self._prices(app.hosts, self._chunk)
        givers = np.flatnonzero(now >= self._chunk)
        less = np.full(len(app.hosts), _NEVER)
        if len(givers):
            value, served = app.value(now - steps[givers])
            holds = (served >= least).all(axis=1)
            less[givers[holds]] = (value - base - self._prices(app.hosts[givers], -self._chunk))[holds]
        self._more[a] = self._less[a] = self._swap[a] = _NEVER
        for p in np.unique(app.pool).tolist():
            mine = np.flatnonzero(app.pool == p)
            best = int(mine[np.argmax(more[mine])])
            self._more[a, p], self._target[a, p] = more[best], app.hosts[best]
            best = int(mine[np.argmax(less[mine])])
            self._less[a, p], self._giver[a, p] = less[best], app.hosts[best]
        self._look_at_swaps(a, now, steps, base, least)

    def _look_at_swaps(self, a: int, now: Floats, steps: Floats, base: float, least: Floats) -> None:
        app = self._apps[a]
        pairs = [
            (g, t)
            for g in np.flatnonzero(now >= self._chunk).tolist()
            for t in np.flatnonzero(app.pool == app.pool[g]).tolist()
            if t != g
        ]
        if not pairs:
            return
        giver, target = np.array(pairs, dtype=np.int64).T
        value, served = app.value(now - steps[giver] + steps[target])
        gain = (
            value - base - self._prices(app.hosts[giver], -self._chunk) - self._prices(app.hosts[target], self._chunk)
        )
        gain[~(served >= least).all(axis=1)] = _NEVER
        for i in np.argsort(gain, kind="stable").tolist():
            p = int(app.pool[giver[i]])
            self._swap[a, p], self._pair[a, p] = gain[i], (int(app.hosts[giver[i]]), int(app.hosts[target[i]]))

    def _prices(self, hosts: Ints, step: int) -> Floats:
        """What ``step`` units more of each host cost in loads and money."""
        loaded = self._program.loaded[hosts]
        before = np.maximum(0, self.units[hosts] - loaded)
        after = np.maximum(0, self.units[hosts] + step - loaded)
        return np.asarray(self._load_price[hosts] * (after - before) + self._money[hosts] * step)


def _apps(program: Program) -> list[_App]:
    """Hosts by app, sorted by name of the app."""
    app_of_host = [program.demands[program.serves[s[0]].demand].app for s in program.serves_of_host]
    found: list[_App] = []
    for app in sorted(set(app_of_host)):
        hosts = np.array([h for h, a in enumerate(app_of_host) if a == app], dtype=np.int64)
        position = {int(h): i for i, h in enumerate(hosts)}
        serves = [program.serves[i] for h in hosts for i in program.serves_of_host[h]]
        lanes: dict[tuple[int, int], int] = {}
        for s in serves:
            lanes.setdefault((s.host, s.lane), len(lanes))
        accuracy = np.zeros(len(lanes))
        for s in serves:
            accuracy[lanes[s.host, s.lane]] = s.accuracy
        fill: list[tuple[float, Ints, Floats]] = []
        demands = sorted({s.demand for s in serves}, key=lambda d: (not program.strict[d], d))
        for d in demands:
            mine = sorted((s for s in serves if s.demand == d), key=lambda s: (-s.accuracy, s.variant))
            order = np.array([lanes[s.host, s.lane] for s in mine], dtype=np.int64)
            fill.append((float(program.weight[d]), order, np.array([max(s.need, 1e-12) for s in mine])))
        lane_host = np.array([position[h] for h, _ in lanes], dtype=np.int64)
        found.append(_App(hosts, lane_host, accuracy, program.host_pool[hosts], fill))
    return found
