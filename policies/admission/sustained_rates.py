"""What an app sustains by a plan: what admission keeps to, from what the plan's slices can run.

Rules. A slice bears what its ``Terms`` say (``sluicegate.policies.promises.keeper``), with all apps that the plan gives
it. The app's own stream goes round its slices in turns; a stream with a key has one slice. Slices that cannot keep
their part of the promise bear nothing: where the app's own stream would come to one, nothing of it is let in. Windows
are as long as the longest of the slices'. ``degraded``: on whichever variant of a slice takes most.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sluicegate.domain.events import HostedOn
from sluicegate.domain.models.app import App, Promise, QueryClass
from sluicegate.domain.plan import Plan
from sluicegate.policies.admission.sustainable import Limits
from sluicegate.policies.placement.hosted_variants import Hosting
from sluicegate.policies.promises.keeper import Hops, Party, Share, Terms, terms
from sluicegate.policies.promises.stream_places import StreamPlaces
from sluicegate.policies.promises.window_limiter import Place, PlaceLimit

_NO_MISSES = Promise(max_consecutive=0)


@dataclass(frozen=True, slots=True)
class Sustained:
    """An app on one slice: its share, and what the slice must keep of its promise."""

    part: HostedOn
    share: Share
    promise: Promise

    @property
    def place(self) -> Place:
        """Device and slice."""
        return (self.part.device, self.part.slice)


def terms_by_place(hosting: Hosting, plan: Plan, hops: Hops, asked: str) -> dict[Place, Terms]:
    """The terms of every slice that ``plan`` gives something. ``asked`` misses nothing where nothing was promised."""
    parties: dict[Place, dict[str, Party]] = {}
    loose: set[Place] = set()
    for app in sorted({p.app for p in plan.placements}):
        known = hosting.catalogue.apps.get(app)
        if known is None:
            continue
        if known.query_class is QueryClass.BEST_EFFORT and not known.promise.active:
            loose.update((p.device, p.slice) for p in plan.of_app(app) if p.variants)
            continue  # its batches are kept short, and it takes no turns
        places = StreamPlaces.of(plan, app)
        for part in hosting.of(app, plan, burst=True):
            if part.hosted:
                place = (part.device, part.slice)
                shown = [hosting.as_shown(*place, h) for h in part.hosted]
                slo = next((p.slo for p in plan.of_app(app) if (p.device, p.slice) == place and p.slo), known.slo)
                promise = known.promise if known.promise.active or app != asked else _NO_MISSES
                parties.setdefault(place, {})[app] = Party.of(shown, slo, places.part(promise, place))
    return {place: terms(there, hops, loose=place in loose) for place, there in parties.items()}


def sustained(app: App, hosting: Hosting, plan: Plan, hops: Hops) -> tuple[Sustained, ...]:
    """``app`` on each slice that hosts it by ``plan``."""
    by_place = terms_by_place(hosting, plan, hops, app.name)
    places = StreamPlaces.of(plan, app.name)
    return tuple(
        Sustained(part, by_place[place].shares[app.name], places.part(app.promise, place))
        for part in hosting.of(app.name, plan, burst=True)
        if (place := (part.device, part.slice)) in by_place and app.name in by_place[place].shares
    )


def limits(app: App, found: tuple[Sustained, ...], plan: Plan) -> Limits | None:
    """What ``app`` is to be kept to; None where nothing is hosted for it yet, or nothing was promised."""
    if not found:
        return None
    places = StreamPlaces.of(plan, app.name)

    def each(batch_of: Callable[[Share], int]) -> tuple[PlaceLimit, ...]:
        return tuple(_limit(one, batch_of(one.share), places) for one in found)

    return Limits(
        each(lambda share: share.batch),
        max(one.share.window_s for one in found),
        each(lambda share: share.degraded[0]),
        max(one.share.degraded[1] for one in found),
        places.of_stream,
        app.slo if app.promise.active else 0.0,
    )


def _limit(one: Sustained, batch: int, places: StreamPlaces) -> PlaceLimit:
    pairs = one.promise.constraints
    return PlaceLimit(0 if one.share.refused else batch, pairs, one.place, places.turns(one.place))
