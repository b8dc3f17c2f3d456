"""The decision process as two operators: expected values after each option, and where a policy takes a distribution.

Values and distributions are (Q, J) over states; a choice is (Q, J), an index into the options of the state's level.
"""

from dataclasses import dataclass

import numpy as np

from sluicegate.planner.mdp.action_space import DROP, Options, enumerate_options
from sluicegate.planner.mdp.kernel import Index, Kernel, build_kernel
from sluicegate.planner.mdp.mdp_model import Array, SelectionModel
from sluicegate.planner.mdp.partial_batches import Partial, build_partial

_NOTHING = 1e-30


@dataclass(frozen=True)
class Chain:
    """The decision process as operators. ``options``: one a queue length. ``idle``: of each level, (J, O), P(nothing
    comes while the option runs).

    ``whole``, ``rest``: of each length, indices of the options that empty the queue by serving it, and the others.
    """

    model: SelectionModel
    kernel: Kernel
    options: tuple[Options, ...]
    whole: tuple[Index, ...]
    rest: tuple[Index, ...]
    idle: tuple[Array, ...]
    partial: Partial | None

    @property
    def shape(self) -> tuple[int, int]:
        """(Q, J)."""
        return self.kernel.levels, self.kernel.bins

    @property
    def arrivals_per_second(self) -> float:
        """Queries a second at this worker."""
        return 1.0 / self.kernel.arrivals.gap

    def options_at(self, level: int) -> Options:
        """Of a level of the queue."""
        return self.options[int(self.kernel.queued[level]) - 1]

    def expected(self, values: Array) -> list[Array]:
        """For each level (J, O): expected value of the next state. Invalid options too; mask them."""
        ahead = self.kernel.ahead(values)
        waited = {t: self.partial.waited(t, values) for t in self.partial.come} if self.partial else {}
        result: list[Array] = []
        for level in range(self.kernel.levels):
            n = int(self.kernel.queued[level])
            options, whole = self.options[n - 1], self.whole[n - 1]
            expected = np.empty((self.kernel.bins, len(options)))
            expected[:, whole] = self.kernel.density[level] @ ahead[options.tau[whole]].T
            expected[:, whole] += self.idle[level] * values[0, -1]
            for o in self.rest[n - 1]:
                expected[:, o] = self._left(n, int(options.batch[o]), waited.get(int(options.tau[o])), values)
            result.append(expected)
        return result

    def _left(self, n: int, batch: int, waited: Array | None, values: Array) -> Array:
        """(J,): value once ``batch`` of n queries have gone; a drop that empties the queue awaits the next arrival."""
        if batch == n:
            return np.full(self.kernel.bins, values[0, -1])
        assert self.partial is not None and waited is not None  # options that leave queries behind build it
        head: Array = self.partial.heads[n, batch] @ waited[n - batch - 1]
        return head

    def step(self, distribution: Array, choice: Index) -> Array:
        """(Q, J): the distribution one decision later."""
        flow = np.zeros((len(self.kernel.taus), self.kernel.s_nodes))
        after = np.zeros(self.shape)
        left: dict[int, Array] = {}
        rows = np.arange(self.kernel.bins)
        for level in np.flatnonzero(distribution.sum(axis=1) > _NOTHING):
            n = int(self.kernel.queued[level])
            options = self.options[n - 1]
            picked = np.zeros((self.kernel.bins, len(options)))
            picked[rows, choice[level]] = distribution[level]
            whole = self.whole[n - 1]
            flow[options.tau[whole]] += picked[:, whole].T @ self.kernel.density[level]
            after[0, -1] += float((picked[:, whole] * self.idle[level]).sum())
            self._leave(n, picked, after, left)
        after += self.kernel.arrive_at(flow)
        for tau, mass in left.items():
            assert self.partial is not None  # as in _left
            after += self.partial.spread(tau, mass)
        return after

    def _leave(self, n: int, picked: Array, after: Array, left: dict[int, Array]) -> None:
        """Take what options that leave queries behind picked: into ``left`` by service time, or ``after``."""
        options = self.options[n - 1]
        for o in self.rest[n - 1]:
            if not picked[:, o].any():
                continue
            batch, tau = int(options.batch[o]), int(options.tau[o])
            if batch == n:
                after[0, -1] += float(picked[:, o].sum())
                continue
            assert self.partial is not None  # as in _left
            mass = left.setdefault(tau, np.zeros(self.shape))
            mass[n - batch - 1] += picked[:, o] @ self.partial.heads[n, batch]


def build_chain(model: SelectionModel) -> Chain:
    """Raises InvalidInputError where the phase is to be told apart but cannot be counted."""
    options, taus = enumerate_options(model)
    kernel = build_kernel(model, taus)
    whole, rest, idle = [], [], []
    pairs: set[tuple[int, int]] = set()
    waits: set[int] = set()
    for n, o in enumerate(options, 1):
        empties = (o.batch == n) & (o.variant != DROP)
        whole.append(np.flatnonzero(empties))
        rest.append(np.flatnonzero(~empties))
        leaves = o.batch < n
        pairs.update((n, int(b)) for b in o.batch[leaves])
        waits.update(int(t) for t in o.tau[leaves])
    for level, n in enumerate(kernel.queued):
        within = kernel.arrival_within[options[n - 1].tau[whole[n - 1]]]
        idle.append(np.clip(1.0 - kernel.density[level] @ within.T, 0.0, 1.0))
    partial = build_partial(kernel, pairs, waits) if pairs else None
    return Chain(model, kernel, options, tuple(whole), tuple(rest), tuple(idle), partial)
