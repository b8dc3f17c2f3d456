"""The decision process as two operators: expected values after each option, and where a policy takes a distribution.

Values and distributions are (Q, J) over states; a choice is (Q, J), an index into the options of the state's level.
Levels have O options each, filled up with ones that are never valid; K of them empty the queue by serving it.
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from sluicegate.planner.mdp.action_space import DROP, Options, enumerate_options
from sluicegate.planner.mdp.kernel import Index, Kernel, build_kernel
from sluicegate.planner.mdp.mdp_model import Array, SelectionModel
from sluicegate.planner.mdp.partial_batches import Partial, build_partial


@dataclass(frozen=True)
class Whole:
    """Options that empty the queue by serving it, of all levels at once. ``at``, ``tau``: (Q, K), which option of its
    level, and its service time. ``idle``: (Q, K, J), P(nothing comes while it runs).

    A level that has fewer is filled up with its first; ``once``: (Q, K), whether it is not that. ``of_tau``:
    (T, Q * K), 1 where an option takes that service time.
    """

    at: Index
    tau: Index
    idle: Array
    once: np.ndarray[tuple[int, int], np.dtype[np.bool_]]
    of_tau: csr_array


@dataclass(frozen=True)
class Chain:
    """The decision process as operators. ``options``: one a queue length. ``rest``: of each length, indices of the
    options that are not of ``whole``. ``lost``: (Q, O, J), mean number of queries that come while an option runs and
    find the queue full, where late queries are dropped; where they are served a full queue is N late ones, as
    published.
    """

    model: SelectionModel
    kernel: Kernel
    options: tuple[Options, ...]
    whole: Whole
    rest: tuple[Index, ...]
    partial: Partial | None
    lost: Array | None

    @property
    def shape(self) -> tuple[int, int]:
        """(Q, J)."""
        return self.kernel.levels, self.kernel.bins

    @property
    def widest(self) -> int:
        """O."""
        return max(map(len, self.options))

    @property
    def arrivals_per_second(self) -> float:
        """Queries a second at this worker."""
        return 1.0 / self.kernel.arrivals.gap

    def options_at(self, level: int) -> Options:
        """Of a level of the queue."""
        return self.options[int(self.kernel.queued[level]) - 1]

    def expected(self, values: Array) -> Array:
        """(Q, O, J): expected value of the next state. Invalid options too; mask them."""
        emptied = self.kernel.ahead(values)[self.whole.tau] @ self.kernel.density.transpose(0, 2, 1)
        emptied += self.whole.idle * values[0, -1]
        if self.partial is None and not any(map(len, self.rest)):
            return emptied
        expected = np.zeros((self.shape[0], self.widest, self.shape[1]))
        np.put_along_axis(expected, self.whole.at[:, :, None], emptied, axis=1)
        waited = {t: self.partial.waited(t, values) for t in self.partial.come} if self.partial else {}
        for level, n in enumerate(map(int, self.kernel.queued)):
            options = self.options[n - 1]
            for o in self.rest[n - 1]:
                expected[level, o] = self._left(n, int(options.batch[o]), waited.get(int(options.tau[o])), values)
        return expected

    def never_queued(self, choice: Index, distribution: Array) -> float:
        """Queries that are lost a decision, of a distribution over states."""
        if self.lost is None:
            return 0.0
        return float(np.vdot(distribution, np.take_along_axis(self.lost, choice[:, None, :], axis=1)[:, 0]))

    def _left(self, n: int, batch: int, waited: Array | None, values: Array) -> Array:
        """(J,): value once ``batch`` of n queries have gone; a drop that empties the queue awaits the next arrival."""
        if batch == n:
            return np.full(self.kernel.bins, values[0, -1])
        assert self.partial is not None and waited is not None  # options that leave queries behind build it
        head: Array = self.partial.heads[n, batch] @ waited[n - batch - 1]
        return head

    def step(self, distribution: Array, choice: Index) -> Array:
        """(Q, J): the distribution one decision later."""
        picked = np.zeros((self.shape[0], self.widest, self.shape[1]))
        np.put_along_axis(picked, choice[:, None, :], distribution[:, None, :], axis=1)
        emptying = np.take_along_axis(picked, self.whole.at[:, :, None], axis=1)
        emptying[~self.whole.once] = 0.0
        gone = emptying @ self.kernel.density
        after = self.kernel.arrive_at(self.whole.of_tau @ gone.reshape(-1, self.kernel.s_nodes))
        after[0, -1] += float(np.vdot(emptying, self.whole.idle))
        left: dict[int, Array] = {}
        for level, n in enumerate(map(int, self.kernel.queued)):
            self._leave(n, picked[level], after, left)
        for tau, mass in left.items():
            assert self.partial is not None  # as in _left
            after += self.partial.spread(tau, mass)
        return after

    def _leave(self, n: int, picked: Array, after: Array, left: dict[int, Array]) -> None:
        """Take what options that leave queries behind picked: into ``left`` by service time, or ``after``."""
        options = self.options[n - 1]
        for o in self.rest[n - 1]:
            if not picked[o].any():
                continue
            batch, tau = int(options.batch[o]), int(options.tau[o])
            if batch == n:
                after[0, -1] += float(picked[o].sum())
                continue
            assert self.partial is not None  # as in _left
            mass = left.setdefault(tau, np.zeros(self.shape))
            mass[n - batch - 1] += picked[o] @ self.partial.heads[n, batch]


def build_chain(model: SelectionModel) -> Chain:
    """Raises InvalidInputError where the phase is to be told apart but cannot be counted."""
    options, taus = enumerate_options(model)
    kernel = build_kernel(model, taus)
    whole, rest = [], []
    pairs: set[tuple[int, int]] = set()
    waits: set[int] = set()
    for n, o in enumerate(options, 1):
        empties = (o.batch == n) & (o.variant != DROP)
        whole.append(np.flatnonzero(empties))
        rest.append(np.flatnonzero(~empties))
        leaves = o.batch < n
        pairs.update((n, int(b)) for b in o.batch[leaves])
        waits.update(int(t) for t in o.tau[leaves])
    partial = build_partial(kernel, pairs, waits) if pairs else None
    lost = _lost(kernel, options, partial) if model.late == "drop" else None
    return Chain(model, kernel, options, _whole(kernel, options, whole), tuple(rest), partial, lost)


def _lost(kernel: Kernel, options: tuple[Options, ...], partial: Partial | None) -> Array:
    """See ``Chain``; without phases, which are not told apart where queries are dropped."""
    n, bins = kernel.levels, kernel.bins
    beyond = kernel.arrivals.beyond(n, kernel.v_nodes)
    during = np.reshape(kernel.matrix @ beyond.T, (len(kernel.taus), kernel.s_nodes, n))
    lost = np.zeros((n, max(map(len, options)), bins))
    for queued, own in enumerate(options, 1):
        for o, (batch, tau) in enumerate(zip(own.batch, own.tau, strict=True)):
            left = queued - int(batch)
            if left == 0:
                lost[queued - 1, o] = kernel.density[queued - 1] @ during[tau, :, n - 1]
            elif kernel.taus[tau] > 0.0:
                assert partial is not None  # options that leave queries behind build it
                waited = kernel.density[left - 1] @ during[tau, :, n - left - 1]
                lost[queued - 1, o] = partial.heads[queued, int(batch)] @ waited
    return lost


def _whole(kernel: Kernel, options: tuple[Options, ...], found: list[Index]) -> Whole:
    """Of each length's options, those ``found``."""
    most = max(map(len, found))
    at = np.empty((kernel.levels, most), dtype=np.int64)
    tau = np.empty_like(at)
    once = np.zeros(at.shape, dtype=bool)
    idle = np.empty((*at.shape, kernel.bins))
    for level, n in enumerate(map(int, kernel.queued)):
        own = found[n - 1]
        at[level], at[level, : len(own)] = own[0], own
        once[level, : len(own)] = True
        tau[level] = options[n - 1].tau[at[level]]
        idle[level] = np.clip(1.0 - kernel.arrival_within[tau[level]] @ kernel.density[level].T, 0.0, 1.0)
    of_tau = csr_array((np.ones(at.size), (tau.ravel(), np.arange(at.size))), shape=(len(kernel.taus), at.size))
    return Whole(at, tau, idle, once, of_tau)
