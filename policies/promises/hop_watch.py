"""Whether queries reach a slice as soon as its promises count on: said where they do not, with what would help.

Rules. A bound allows for a way to the slice (``Share.hop_s``). Who is longer on it may be missed though the load is
within the bound. That is said once ``MANY`` queries of an app came late within ``LATELY`` seconds, one alone may have
met a pause of its machine, and withdrawn after ``CALM`` seconds in which none did. It is told and changes no bound:
a client that dates its queries back would narrow that of all others.
"""

from collections import deque

from sluicegate.domain.actions import Announce

LATE = "hop_exceeded"
KEPT = "hop_kept"
MANY = 5
LATELY = 10.0
CALM = 60.0


class HopWatch:
    """Of one app on a slice."""

    __slots__ = ("_app", "_late", "_until")

    def __init__(self, app: str) -> None:
        self._app = app
        self._late: deque[tuple[float, float]] = deque(maxlen=MANY)
        self._until = 0.0  # when what was said is withdrawn; 0: nothing is said

    def came(self, hop_s: float, allowed_s: float, now: float) -> tuple[Announce, ...]:
        """A query came after ``hop_s`` seconds on its way, where ``allowed_s`` count; what is to be said."""
        if hop_s <= allowed_s:
            if not self._until or now < self._until:
                return ()
            self._until = 0.0
            told = f"queries are no longer than {1e3 * allowed_s:.4g} ms on their way again"
            return (Announce(f"hop:{self._app}", KEPT, told),)
        said, late = self._until > 0.0, self._late
        late.append((now, hop_s))
        if said:
            self._until = now + CALM
        if said or len(late) < MANY or now - late[0][0] > LATELY:
            return ()
        self._until = now + CALM
        longest = max(seconds for _, seconds in late)
        detail = (
            f"{MANY} queries within {now - late[0][0]:.2g} s were up to {1e3 * longest:.4g} ms on their way, where the "
            f"bound of the promise allows for {1e3 * allowed_s:.4g}: some may be missed within the bound; raise "
            "admission.hop_ms, give broker and stages more cores, or set the clocks of those who ask"
        )
        return (Announce(f"hop:{self._app}", LATE, detail, {"longest_s": longest, "allowed_s": allowed_s}),)
