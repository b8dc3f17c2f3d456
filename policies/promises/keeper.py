"""What keeps promises on one slice: how long each app's batches may take there, and those of best effort.

Rules. Seconds are those that hardly any batch exceeds (quantile "sure"). Of an app with an SLO of L seconds, whose
queries reach the slice within H (the hop):

- The apps of the slice take turns, in a cycle of D seconds at most: the sum of their longest batches. Best effort, and
  apps that ask for it as a rule, run while none of those wait, so that at most one of its batches is in the way when a
  query comes: Q seconds. They run while some wait, too, where the batch ends within Q of when the first of those came
  that wait: it delays them by no more than one that had begun just before. So best effort is not left with what single
  rows leave, which come one by one and run at once. Not so soon after a turn in which more came than its batch takes:
  else misses that the promise bears would be spent on best effort.
- Two batches of an app start at most S = D apart while its queries wait. A query that comes while nothing of its app
  waits starts within Q + D - P, P being its app's longest batch. Hence every query is a candidate of exactly one batch,
  and the candidates of one batch arrived within S, where

      D + P + H <= L      (spacing)
      Q + D + H <= L      (blocking)

  so that Q may be P without lowering the bound.
- What bounds follow from that is in ``sluicegate.domain.models.sustainable_rate``.
- With n apps each batch takes (L - H) / (n + 1) at most, by the most urgent promise; where a single row of some app
  takes longer, the others share what that leaves. Of the sizes within it a promised app takes the one of the best rate,
  or beside best effort the smallest whose rate is nearly the best: what its turns leave is for the others' batches,
  which are worth more when they are large.
- What does not fit is refused, with the reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from sluicegate.domain.events import Hosted
from sluicegate.domain.models.app import HOP_PART, NO_PROMISE, Promise
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.models.sustainable_rate import NEARLY, nearly_best, processing_bound, window_bound


@dataclass(frozen=True, slots=True)
class Hops:
    """How long queries are on their way from their arrival to a slice, at most: ``seconds``, else a part of the SLO."""

    seconds: float | None = None

    def of(self, slo: float) -> float:
        """Seconds for an app with this SLO."""
        return HOP_PART * slo if self.seconds is None else self.seconds


NO_HOPS = Hops(0.0)


@dataclass(frozen=True, slots=True)
class Party:
    """An app with strict queries on a slice. ``seconds``: by rows, of each variant there, the most accurate first.

    ``promise``: what this slice must keep of it. ``paces``: of each variant, ``Hosted.pace``; (): 1.
    """

    seconds: tuple[tuple[float, ...], ...]
    slo: float
    promise: Promise = NO_PROMISE
    paces: tuple[float, ...] = ()

    @staticmethod
    def of(hosted: Sequence[Hosted], slo: float, promise: Promise) -> "Party":
        """With these variants."""
        return Party(tuple([h.longest for h in hosted]), slo, promise, tuple([h.pace for h in hosted]))


@dataclass(frozen=True, slots=True)
class Share:
    """An app's part of the slice. ``batches``: rows of each variant at most, 0 where it fits in no turn.

    ``processing_s``: P, no batch of it takes longer. ``others_s``: seconds of each cycle that go to the other apps.
    ``hop_s``: H. ``refused``: why its promise cannot be kept; "" where it can. ``took``: by variant, seconds.
    ``paced_s``: P of batches one after the other; ``window_s``: S, of the bound, with all apps at that pace.
    """

    batches: tuple[int, ...]
    processing_s: float
    others_s: float
    hop_s: float
    refused: str = ""
    took: tuple[float, ...] = ()
    paced_s: float = 0.0
    window_s: float = 0.0

    @property
    def degraded(self) -> tuple[int, float]:
        """Rows of a batch on the variant that serves most, and seconds between two of those."""
        each = [(b, seconds) for b, seconds in zip(self.batches, self.took, strict=True) if b >= self.batch > 0]
        batch, seconds = max(each, key=lambda one: one[0] / one[1], default=(0, self.processing_s))
        return batch, (seconds + self.others_s) * self.window_s / (self.processing_s + self.others_s)

    @property
    def batch(self) -> int:
        """Rows of a batch on the most accurate variant that fits."""
        return next((b for b in self.batches if b), 0)

    def bound(self, promise: Promise, rows: int = 1, *, fastest: bool = False) -> int:
        """Queries of ``rows`` rows in any window of ``window_s`` that are sustained; 0 where nothing is.

        ``fastest``: on whichever variant takes most.
        """
        batch = max(self.batches, default=0) if fastest else self.batch
        return 0 if self.refused else window_bound(batch // rows, promise)


@dataclass(frozen=True, slots=True)
class Terms:
    """Of one slice. ``shares``: by app. ``blocking_s``: Q, no batch of best effort takes longer."""

    shares: Mapping[str, Share]
    blocking_s: float


FREE = Terms({}, inf)
"""Nothing was promised there."""


def terms(parties: Mapping[str, Party], hops: Hops, *, loose: bool = False) -> Terms:
    """What the apps of a slice must keep to, so that what was promised is kept. ``loose``: an app whose class is best
    effort is there too."""
    rooms = {name: one.slo - hops.of(one.slo) for name, one in parties.items() if one.promise.active}
    if not rooms:
        return FREE
    budget = _budget({name: _least(one) for name, one in parties.items()}, min(rooms.values()))
    longest = {name: _longest(one, max(budget, _least(one))) for name, one in parties.items()}
    found: dict[str, Share] = {}
    for name, one in parties.items():
        others_s = sum(seconds for other, seconds in longest.items() if other != name)
        found[name] = _share(one, longest[name], others_s, hops.of(one.slo), NEARLY if loose else 1.0)
    cycle_s = sum(share.processing_s for share in found.values())
    window_s = sum(share.paced_s for share in found.values())
    shares = {
        name: replace(_judged(share, cycle_s, parties[name].slo if name in rooms else None), window_s=window_s)
        for name, share in found.items()
    }
    kept = [rooms[name] - cycle_s for name in rooms if not shares[name].refused]
    return Terms(shares, min(kept, default=inf))


def _least(one: Party) -> float:
    return min(seconds[0] for seconds in one.seconds)


def _budget(least: Mapping[str, float], room: float) -> float:
    """Seconds of a turn: equal for all but those whose single rows take longer."""
    budget = room / (len(least) + 1)
    slow = [seconds for seconds in least.values() if seconds > budget]
    return max(0.0, (room - sum(slow)) / (len(least) - len(slow) + 1)) if slow else budget


def _longest(one: Party, budget: float) -> float:
    """Seconds of the longest batch within ``budget``, of any variant."""
    found = 0.0
    for seconds in one.seconds:
        if rows := within(seconds, budget):
            found = max(found, max(seconds[:rows]))
    return found


def within(seconds: tuple[float, ...], budget: float) -> int:
    """The most rows of which no batch takes longer than ``budget``."""
    for rows, took in enumerate(seconds):
        if took > budget:
            return rows
    return len(seconds)


def _share(one: Party, longest: float, others_s: float, hop_s: float, nearly: float) -> Share:
    processing_s = longest
    if one.promise.active:
        for seconds in one.seconds:
            curve = LatencyCurve(seconds)
            sizes = range(1, within(seconds, longest) + 1)
            best = nearly_best(curve, one.promise, others_s=others_s, batches=sizes, nearly=nearly) if sizes else None
            if best is not None:
                processing_s = processing_bound(curve, best.batch)
                break
    batches = tuple(within(seconds, processing_s) for seconds in one.seconds)
    took = tuple(max(seconds[:rows], default=0.0) for seconds, rows in zip(one.seconds, batches, strict=True))
    paced = [s * pace for s, pace in zip(took, one.paces or (1.0,) * len(took), strict=True)]
    return Share(batches, processing_s, others_s, hop_s, took=took, paced_s=max(paced))


def _judged(share: Share, cycle_s: float, slo: float | None) -> Share:
    """With the others' turns as they came to be, and whether a promise is kept within ``slo`` (None: there is none)."""
    others_s = max(0.0, cycle_s - share.processing_s)
    refused = ""
    if slo is not None and cycle_s + share.processing_s + share.hop_s > slo * (1.0 + 1e-12):
        refused = (
            f"a turn of all apps of the slice takes {1e3 * cycle_s:.4g} ms, its own batch "
            f"{1e3 * share.processing_s:.4g} ms and the way there {1e3 * share.hop_s:.4g} ms, "
            f"which is more than its SLO of {1e3 * slo:.4g} ms"
        )
    return replace(share, others_s=others_s, refused=refused)
