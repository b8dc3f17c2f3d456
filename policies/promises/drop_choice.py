"""Which of N candidates a batch of B < N keeps: four rules, each a function to a list of N booleans (True: keep).

Rules. Candidates stand in arrival order, exactly B are kept. The spread-drop paper's Algorithms 3 and 4 are stated with
their index errors mended: Algorithm 4's pattern was shifted by one, and outside its range it filled more than B places.

- ``grouped`` (Algorithm 3): groups of drops that end with a keep, the shorter groups first. A run of drops is at most
  ceil(N/B) - 1 long. Says nothing about (m, K): 6 candidates for 4 places give 110101, two misses in three.
- ``blockwise`` (Algorithm 4): m drops, then K - m keeps, and so on, as long as drops are owed.
- ``balanced``: the k-th keep at position ceil(k N / B). Any window of u candidates holds at most ceil(u (N-B)/N) drops,
  whatever m and K are.
- ``greedy``: drops as soon as every (m, K) allows it, which is optimal: where it cannot drop N - B, no rule can.
"""

from collections.abc import Callable, Sequence

from sluicegate.domain.query import Query
from sluicegate.policies.promises.history import MissHistory


def grouped(n: int, b: int) -> list[bool]:
    """Algorithm 3 of spread-drop: keep ``b`` of ``n`` candidates, 1 <= b <= n."""
    shorter, longer = n // b, -(-n // b)
    short_groups = b * longer - n if longer != shorter else b
    keep: list[bool] = []
    for group in range(b):
        drops = (shorter if group < short_groups else longer) - 1
        keep += [False] * drops
        keep.append(True)
    return keep


def blockwise_range(b: int, m: int, k: int) -> int:
    """The most candidates for which ``blockwise`` keeps (m, K) with ``b`` places: floor(B/(K-m)) K + B mod (K-m)."""
    return b // (k - m) * k + b % (k - m)


def blockwise(n: int, b: int, m: int, k: int) -> list[bool] | None:
    """Algorithm 4 of spread-drop for (m, K), 0 <= m < K; None outside its range (m = 0, or too many candidates)."""
    if m < 1 or n > blockwise_range(b, m, k):
        return None
    blocks, rest = divmod(n - b, m)
    return [(p % k >= m) if p < k * blocks else (p - k * blocks >= rest) for p in range(n)]


def balanced(n: int, b: int) -> list[bool]:
    """Keep the 1-based positions ceil(k n / b), k = 1..b; 1 <= b <= n."""
    keep = [False] * n
    for k in range(1, b + 1):
        keep[-(-k * n // b) - 1] = True
    return keep


def greedy(n: int, b: int, history: MissHistory) -> list[bool] | None:
    """Drop ``n - b`` as early as ``history`` allows; None where it allows fewer. ``history`` is left as it is."""
    owed = n - b
    trial = history.fork()
    keep: list[bool] = []
    for _ in range(n):
        drop = owed > 0 and trial.may_miss()
        trial.record(drop)
        owed -= drop
        keep.append(not drop)
    return None if owed else keep


def greedy_rows(
    candidates: Sequence[Query], rows: int, history_of: Callable[[Query], MissHistory]
) -> list[bool] | None:
    """The same for queries of several rows, and of several streams: keep as many as fit into ``rows``."""
    owed = sum([q.rows for q in candidates]) - rows
    keep, owed = _as_allowed(candidates, owed, sum([q.rows for q in candidates]), history_of)
    if owed > 0:
        return None
    for i in reversed(range(len(keep))):
        if not keep[i] and owed + candidates[i].rows <= 0:
            keep[i] = True
            owed += candidates[i].rows
    return keep


def borne(candidates: Sequence[Query], rows: int, history_of: Callable[[Query], MissHistory]) -> list[bool] | None:
    """As many of the first candidates as are decided when ``rows`` are kept and every one is dropped that may be; None
    where these are all of them."""
    keep, _ = _as_allowed(candidates, sum([q.rows for q in candidates]) - rows, rows, history_of)
    return keep if len(keep) < len(candidates) else None


def _as_allowed(
    candidates: Sequence[Query], owed: int, rows: int, history_of: Callable[[Query], MissHistory]
) -> tuple[list[bool], int]:
    """Drop until ``owed`` rows are gone or ``rows`` are kept; what is still owed."""
    trials: dict[str, MissHistory] = {}
    keep: list[bool] = []
    for query in candidates:
        trial = trials.get(query.stream) or trials.setdefault(query.stream, history_of(query).fork())
        drop = owed > 0 and trial.may_miss()
        if drop:
            owed -= query.rows
        elif query.rows > rows:
            break
        else:
            rows -= query.rows
        trial.record(drop)
        keep.append(not drop)
    return keep, owed
