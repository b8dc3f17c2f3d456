"""The program as a matrix for OR-tools MathOpt: GLOP for linear programs, HiGHS or SCIP for integer ones.

Rules:
- One thread, fixed seed: the same matrix gives the same answer. A node limit ends a search; the limit in seconds is a
  safety stop, and a matrix remembers that it struck.
- No CP-SAT: it rounds continuous columns and calls the result optimal.
- In a linear program a host that serves one demand needs no column of its own (n = max(1, need) f), which leaves one
  row a pool and one a demand.
- Any trouble of the solver is a SolverError: the caller has another way.
- Messages go to MathOpt and come back as they are: its objects for variables and rows cost as much as a small solve.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from sluicegate.planner.allocation.program import Floats, Ints, Program
from sluicegate.planner.allocation.solver_types import Goal, Limits, Solved, SolverError

try:
    from ortools.math_opt import callback_pb2, model_parameters_pb2, model_pb2, parameters_pb2, result_pb2, solution_pb2
    from ortools.math_opt.core.python import solver as mathopt
except ImportError:  # pragma: no cover - the heuristic planner stands in
    mathopt = None

__all__ = ["Goal", "Limits", "Matrix", "MipSolver", "Solved", "SolverError"]

MipSolver = Literal["highs", "scip"]
_INF = float("inf")


class Matrix:
    """The program's rows and columns, built once and solved for several goals.

    ``integer``: host counts are whole numbers. ``units``: fixes the host counts. ``counts``, ``budget``: units by pool
    and money, where other than the program's (some held back for rounding). ``cover``: state what the rows imply.
    ``timed_out``: the safety stop struck in some solve.
    """

    def __init__(
        self,
        program: Program,
        *,
        integer: bool = False,
        units: Ints | None = None,
        counts: Ints | None = None,
        budget: float | None = None,
        cover: bool = True,
    ) -> None:
        if mathopt is None:
            raise SolverError("OR-tools is not installed")
        self.timed_out = False
        self._program = program
        self._integer = integer
        self._cover = cover and integer
        self._fixed = units
        self._counts = program.pool_count if counts is None else counts
        self._budget = program.budget if budget is None else budget
        hosts, serves, demands = len(program.hosts), len(program.serves), len(program.demands)
        own = integer or units is not None or program.priced
        alone = np.array([len(s) == 1 for s in program.serves_of_host], dtype=np.bool_)
        self._alone = alone & (not own)
        self._host_column = np.full(hosts, -1, dtype=np.int64)
        with_column = np.flatnonzero(~self._alone)
        self._host_column[with_column] = serves + np.arange(len(with_column))
        at = serves + len(with_column)
        self._load_column = np.full(hosts, -1, dtype=np.int64)
        if program.load_price.any() or program.max_loads is not None:
            self._load_column = at + np.arange(hosts)
            at += hosts
        self._displaced_column = at + np.arange(0 if program.max_loads is None else len(program.pools))
        at += len(self._displaced_column)
        self._served_column = at + np.arange(demands)
        self._phi_column = at + demands
        self._columns = self._phi_column + 1
        self._rows: list[tuple[float, float]] = []
        self._triplets: list[tuple[Ints, Ints, Floats]] = []
        self._message: Any = None
        self._build()

    def _add(self, rows: Ints, columns: Ints, values: Floats) -> None:
        self._triplets.append((rows, columns, values))

    def _new_rows(self, count: int, low: float | Floats, high: float | Floats) -> Ints:
        start = len(self._rows)
        lows = np.broadcast_to(np.asarray(low, dtype=np.float64), count).tolist()
        highs = np.broadcast_to(np.asarray(high, dtype=np.float64), count).tolist()
        self._rows.extend(zip(lows, highs, strict=True))
        return start + np.arange(count)

    def _build(self) -> None:
        p = self._program
        serves = np.arange(len(p.serves))
        counts = np.asarray(self._counts, dtype=np.float64)
        self._pool_rows = self._new_rows(len(p.pools), -_INF, counts)
        alone_serve = self._alone[p.serve_host] if len(serves) else np.zeros(0, dtype=np.bool_)
        a = serves[alone_serve]
        self._add(self._pool_rows[p.host_pool[p.serve_host[a]]], a, np.maximum(1.0, p.need[a]))
        hosts = np.flatnonzero(~self._alone)
        if len(hosts):
            self._add(self._pool_rows[p.host_pool[hosts]], self._host_column[hosts], np.ones(len(hosts)))
            self._capacity_rows(serves[~alone_serve])
        rows = self._demand_rows = self._new_rows(len(p.demands), 0.0, 0.0)
        self._add(rows[p.serve_demand], serves, np.ones(len(serves)))
        self._add(rows, self._served_column, -np.ones(len(p.demands)))
        self._phi_rows = self._new_rows(len(p.demands), 0.0, _INF)
        self._add(self._phi_rows, self._served_column, np.ones(len(p.demands)))
        self._add(self._phi_rows, np.full(len(p.demands), self._phi_column), -np.ones(len(p.demands)))
        self._load_rows()
        self._money_rows()
        if self._cover:
            self._cover_rows()

    def _money_rows(self) -> None:
        """price n within the budget; of each strict demand a part served by units that are not spot."""
        p = self._program
        if self._budget is not None and len(p.hosts) and self._fixed is None:
            row = self._new_rows(1, -_INF, self._budget)
            self._add(np.repeat(row, len(p.hosts)), self._host_column, p.rent)
        if p.strict_on_demand > 0 and len(p.serves) and p.spot.any():
            demands = np.flatnonzero(p.strict)
            row_of = np.full(len(p.demands), -1, dtype=np.int64)
            row_of[demands] = self._new_rows(len(demands), 0.0, _INF)
            staying = np.flatnonzero(p.strict[p.serve_demand] & ~p.spot[p.serve_host])
            self._add(row_of[p.serve_demand[staying]], staying, np.ones(len(staying)))
            self._add(row_of[demands], self._served_column[demands], np.full(len(demands), -p.strict_on_demand))

    def _cover_rows(self) -> None:
        """Units that can answer a demand, each at its worth, are enough for what is served.

        The other rows imply it, but stated it gives cuts that halve the search.
        """
        p = self._program
        rows = self._new_rows(len(p.demands), 0.0, _INF)
        best: dict[tuple[int, int, int], float] = {}
        for serve in p.serves:
            lane = (serve.demand, serve.host, serve.lane)
            best[lane] = max(best.get(lane, 0.0), 1.0 / max(serve.need, 1.0))
        worth: dict[tuple[int, int], float] = {}
        for (demand, host, _), part in best.items():
            worth[demand, host] = min(1.0, worth.get((demand, host), 0.0) + part)
        demands, hosts = np.array(list(worth), dtype=np.int64).reshape(-1, 2).T
        self._add(rows[demands], self._host_column[hosts], np.array(list(worth.values())))
        self._add(rows, self._served_column, -np.ones(len(p.demands)))

    def _capacity_rows(self, serves: Ints) -> None:
        """need f <= n for each lane of a host, f <= n for each serve; one row where a lane has one serve."""
        p = self._program
        single = np.bincount(p.serve_lane, minlength=len(p.lane_host)) == 1
        lanes = np.flatnonzero(~self._alone[p.lane_host])
        row_of = np.full(len(p.lane_host), -1, dtype=np.int64)
        row_of[lanes] = self._new_rows(len(lanes), -_INF, 0.0)
        factor = np.where(single[p.serve_lane[serves]], np.maximum(1.0, p.need[serves]), p.need[serves])
        self._add(row_of[p.serve_lane[serves]], serves, factor)
        self._add(row_of[lanes], self._host_column[p.lane_host[lanes]], -np.ones(len(lanes)))
        shared = serves[~single[p.serve_lane[serves]]]
        rows = self._new_rows(len(shared), -_INF, 0.0)
        self._add(rows, shared, np.ones(len(shared)))
        self._add(rows, self._host_column[p.serve_host[shared]], -np.ones(len(shared)))

    def _load_rows(self) -> None:
        """u >= n - n0; of each pool v >= sum of u less what holds nothing, and the sum of v below the cap."""
        p = self._program
        if not len(p.hosts) or self._load_column[0] < 0:
            return
        rows = self._new_rows(len(p.hosts), -_INF, p.loaded.astype(np.float64))
        self._add(rows, self._host_column, np.ones(len(p.hosts)))
        self._add(rows, self._load_column, -np.ones(len(p.hosts)))
        if p.max_loads is not None:
            displaced = self._new_rows(len(p.pools), -_INF, np.array(p.empty_units, dtype=np.float64))
            self._add(displaced[p.host_pool], self._load_column, np.ones(len(p.hosts)))
            self._add(displaced, self._displaced_column, -np.ones(len(p.pools)))
            cap = self._new_rows(1, -_INF, float(p.max_loads))
            self._add(np.repeat(cap, len(p.pools)), self._displaced_column, np.ones(len(p.pools)))

    def _objective(self, goal: Goal) -> Floats:
        p = self._program
        c = np.zeros(self._columns)
        if goal.shares is not None:
            c[: len(p.serves)] += goal.shares
        if goal.served is not None:
            c[self._served_column] += goal.served
        c[self._phi_column] = goal.phi
        if goal.prices and len(p.hosts):
            if p.load_price.any():
                c[self._load_column] -= p.load_price
            if p.money_weight > 0:
                c[self._host_column] -= p.money_weight * p.rent
        return c

    def solve(
        self,
        goal: Goal,
        *,
        served_low: Floats,
        served_high: Floats,
        fair: Sequence[int] = (),
        limits: Limits | None = None,
        hint: Solved | None = None,
        solver: MipSolver = "highs",
        duals: bool = False,
    ) -> Solved | None:
        """Maximise ``goal`` with each demand's served share within bounds; None where that is infeasible.

        ``fair``: demands whose served share is at least phi. An integer search that ends without an answer because of
        ``limits`` raises SolverError.
        """
        low, high = np.zeros(self._columns), np.full(self._columns, _INF)
        p = self._program
        high[: len(p.serves)] = 1.0
        low[self._served_column], high[self._served_column] = served_low, served_high
        high[self._phi_column] = 1.0 if len(fair) else 0.0
        own = np.flatnonzero(self._host_column >= 0)
        high[self._host_column[own]] = self._unit_high()[own]
        if self._fixed is not None:
            low[self._host_column[own]] = high[self._host_column[own]] = self._fixed[own]
        phi_low = np.full(len(p.demands), -_INF)
        phi_low[list(fair)] = 0.0
        objective = self._objective(goal)
        try:
            asked = self._asked(objective, low, high, phi_low)
            result = self._run(asked, limits or Limits(), hint, solver)
        except Exception as error:
            # MathOpt raises whatever its bindings raise; all of it means that this solve gave nothing.
            raise SolverError(f"{type(error).__name__}: {error}") from error
        return self._read(result, duals)

    def _unit_high(self) -> Floats:
        high = self._program.unit_limit.astype(np.float64)
        return high if self._fixed is None else np.maximum(high, self._fixed)

    def _asked(self, objective: Floats, low: Floats, high: Floats, phi_low: Floats) -> Any:
        """The message of rows and columns with this goal and these bounds."""
        if self._message is None:
            self._message = self._rows_and_columns()
        model, lows = self._message, np.array([least for least, _ in self._rows])
        lows[self._phi_rows] = phi_low
        used = np.flatnonzero(objective)
        for field, values in (
            (model.variables.lower_bounds, low),
            (model.variables.upper_bounds, high),
            (model.linear_constraints.lower_bounds, lows),
            (model.objective.linear_coefficients.ids, used),
            (model.objective.linear_coefficients.values, objective[used]),
        ):
            del field[:]
            field.extend(values.tolist())
        return model

    def _rows_and_columns(self) -> Any:
        """What is the same for every goal."""
        model = model_pb2.ModelProto()
        model.objective.maximize = True
        integers = np.zeros(self._columns, dtype=np.bool_)
        if self._integer:
            integers[self._whole()] = True
        model.variables.ids.extend(range(self._columns))
        model.variables.integers.extend(integers.tolist())
        rows, matrix = model.linear_constraints, model.linear_constraint_matrix
        rows.ids.extend(range(len(self._rows)))
        rows.upper_bounds.extend(most for _, most in self._rows)
        r, c, v = (np.concatenate([t[i] for t in self._triplets]) for i in range(3))
        order = np.lexsort((c, r))
        matrix.row_ids.extend(r[order].tolist())
        matrix.column_ids.extend(c[order].tolist())
        matrix.coefficients.extend(v[order].tolist())
        return model

    def _whole(self) -> Ints:
        """Columns that are whole numbers in an integer program."""
        return self._host_column

    def _run(self, model: Any, limits: Limits, hint: Solved | None, solver: MipSolver) -> Any:
        types = parameters_pb2
        params, extra = types.SolveParametersProto(), model_parameters_pb2.ModelSolveParametersProto()
        kind = types.SOLVER_TYPE_GLOP
        if self._integer:
            params.node_limit = limits.nodes
            params.absolute_gap_tolerance, params.relative_gap_tolerance = limits.gap, 0.0
            params.random_seed = 1
        if self._integer and solver == "highs":
            kind = types.SOLVER_TYPE_HIGHS
            params.highs.double_options["time_limit"] = limits.seconds
        elif self._integer:
            kind = types.SOLVER_TYPE_GSCIP
            params.threads = 1
            # Restarts of the search cost more than they find in programs this small.
            params.gscip.int_params["presolving/maxrestarts"] = 0
            params.gscip.real_params["limits/time"] = limits.seconds
            if hint is not None:
                values = extra.solution_hints.add().variable_values
                values.ids.extend(range(self._columns))
                values.values.extend(self._hint(hint).tolist())
        initial, heard = types.SolverInitializerProto(), callback_pb2.CallbackRegistrationProto()
        return mathopt.solve(model, kind, initial, params, extra, None, heard, None, None)

    def _hint(self, hint: Solved) -> Floats:
        """Values for every column; host counts beyond a column's bound are clipped (hints outside bounds raise)."""
        p = self._program
        values = np.zeros(self._columns)
        values[: len(p.serves)] = np.clip(hint.shares, 0.0, 1.0)
        values[self._host_column] = np.minimum(hint.units, self._unit_high())
        if len(p.hosts) and self._load_column[0] >= 0:
            values[self._load_column] = np.maximum(0.0, values[self._host_column] - p.loaded)
        if len(self._displaced_column):
            values[self._displaced_column] = np.maximum(
                0, p.loads_beyond_empty(values[self._host_column].astype(np.int64))
            )
        values[self._served_column] = hint.served
        return values

    def _read(self, result: Any, duals: bool) -> Solved | None:
        names, ended = result_pb2, result.termination
        self.timed_out = self.timed_out or ended.limit == names.LIMIT_TIME
        if ended.reason in (names.TERMINATION_REASON_INFEASIBLE, names.TERMINATION_REASON_INFEASIBLE_OR_UNBOUNDED):
            return None
        known = ended.reason in (names.TERMINATION_REASON_OPTIMAL, names.TERMINATION_REASON_FEASIBLE)
        best = result.solutions[0] if known and result.solutions else solution_pb2.SolutionProto()
        if best.primal_solution.feasibility_status != solution_pb2.SOLUTION_STATUS_FEASIBLE:
            name = names.TerminationReasonProto.Name(ended.reason).removeprefix("TERMINATION_REASON_").lower()
            raise SolverError(f"ended {name} without a solution; {ended.detail}")
        x = np.array(best.primal_solution.variable_values.values)
        p = self._program
        shares = np.clip(x[: len(p.serves)], 0.0, 1.0)
        units = np.zeros(len(p.hosts))
        own = np.flatnonzero(self._host_column >= 0)
        units[own] = x[self._host_column[own]]
        alone = np.flatnonzero(self._alone[p.serve_host]) if len(p.serves) else np.zeros(0, dtype=np.int64)
        units[p.serve_host[alone]] = np.maximum(1.0, p.need[alone]) * shares[alone]
        if self._integer:
            units = np.rint(units)
        pool_duals = demand_duals = None
        if duals and not self._integer:
            prices = np.array(best.dual_solution.dual_values.values)
            pool_duals, demand_duals = np.abs(prices[self._pool_rows]), prices[self._demand_rows]
        return Solved(
            value=ended.objective_bounds.primal_bound,
            bound=ended.objective_bounds.dual_bound,
            shares=shares,
            units=units,
            served=np.clip(x[self._served_column], 0.0, 1.0),
            phi=float(x[self._phi_column]),
            nodes=int(result.solve_stats.node_count),
            pool_duals=pool_duals,
            demand_duals=demand_duals,
        )
