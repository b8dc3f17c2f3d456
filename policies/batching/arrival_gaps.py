"""How long is a wait for company worth it: the gaps between arrivals on a logarithmic grid, O(1) an arrival.

Bursty arrivals have no single rate: just after an arrival the next one is likely at once, and the longer nothing has
come the less is to be expected. So gaps are counted in bins that double in width, from a millionth of the SLO up;
recent gaps weigh more. Of a bin the counts give how many gaps ended there and how long all gaps together spent there:
their quotient, pooled from the present gap up to some limit, is arrivals gained per second waited up to that limit.
"""

from math import log2

OCTAVES = 20
"""Doublings from the narrowest bin to the SLO; what is longer shares the last bins."""
ABOVE = 2
FORGET = 1.003
"""Each gap weighs that much more than the one before: some 300 gaps are remembered."""
_REFRESH = 16
_HEAVY = 1e12


class ArrivalGaps:
    """Estimates gaps between arrivals. ``scale``: the SLO, seconds."""

    __slots__ = ("_base", "_counts", "_edges", "_ended", "_fresh", "_risk", "_weight")

    def __init__(self, scale: float) -> None:
        bins = OCTAVES + ABOVE + 1
        self._base = scale / 2**OCTAVES
        self._edges = [0.0] + [self._base * 2.0**k for k in range(1, bins + 1)]
        self._counts = [0.0] * bins
        self._ended = [0.0] * bins
        self._risk = [0.0] * bins
        self._weight = 1.0
        self._fresh = 0

    def add(self, gap: float) -> None:
        """An arrival came ``gap`` seconds after the last."""
        self._weight *= FORGET
        self._counts[self._bin(gap)] += self._weight
        self._fresh += 1
        if self._fresh >= _REFRESH:
            self._refresh()

    def wait_until(self, since: float, rate: float) -> float:
        """Seconds since the last arrival up to which a wait for the next brings more than ``rate`` arrivals a second.

        ``since`` seconds have passed without one. The longest such wait, since others may follow who comes first; 0
        where there is none.
        """
        edges, ended, risk = self._edges, self._ended, self._risk
        here = self._bin(since)
        share = (edges[here + 1] - since) / (edges[here + 1] - edges[here])
        share = share if share > 0.0 else 0.0
        came, waited = share * ended[here], share * risk[here]
        until = edges[here + 1] if came > rate * waited else 0.0
        for k in range(here + 1, len(ended)):
            if ended[k]:
                came += ended[k]
                waited += risk[k]
                if came > rate * waited:
                    until = edges[k + 1]
            else:
                waited += risk[k]
        return until

    def _bin(self, gap: float) -> int:
        ratio = gap / self._base
        return min(int(log2(ratio)), len(self._counts) - 1) if ratio >= 2.0 else 0

    def _refresh(self) -> None:
        """Time spent in each bin: its width by those who left it above, half of it by those who ended there."""
        self._fresh = 0
        counts, edges = self._counts, self._edges
        if self._weight > _HEAVY:
            self._counts = counts = [c / self._weight for c in counts]
            self._weight = 1.0
        beyond = 0.0
        for k in range(len(counts) - 1, -1, -1):
            self._risk[k] = (edges[k + 1] - edges[k]) * (beyond + 0.5 * counts[k])
            beyond += counts[k]
        self._ended = counts.copy()
