"""Staging: how one slice follows the plans, make-before-break where memory allows.

Rules.
1. A plan of a lower or equal epoch is refused (a zombie planner is harmless).
2. Missing variants are loaded one after the other, for the largest batch that any plan may allow. An app is switched
   (Host) as soon as all of its new variants are loaded or have failed, and only then are its old ones forgotten. If
   every new one failed, the old ones stay. What is lost with its executor has failed, too, until the next plan.
3. Where loaded and wanted together exceed the slice's memory, what the plan no longer wants is forgotten first.
4. When nothing is left to load, the epoch is acknowledged with what is loaded and what failed.
5. An app that leaves the slice goes on being served until what takes its place is loaded, and for ``grace`` seconds
   more, the time that routers take to switch; then it is retired: once its queue is empty its variants are forgotten.
   A plan that wants it back cancels that: its streams with a key were elsewhere meanwhile, and are told as of no
   place (``shares``) before their new ones. One that nothing was hosted for yet is forgotten at once.
6. An app with a promise is told its peers, the slices that its own stream goes to in turn, and its part of the
   promise: those of the newest plan, loading or not. While routers switch to other turns (as long as what is new there
   takes to load, by its profile, and ``grace`` seconds) the peers of the plans before count too, each with a part that
   keeps the promise whichever of them gets what.
7. What is let in of a promised app goes by one plan or another. So an app without a promise that leaves gives way to
   the promised (``aside``), and so does one that comes while a promised one leaves.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import assert_never

from sluicegate.domain.actions import Acknowledge, Host, Load, Retire, StagingAction, Unload, WakeAt
from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.events import HostingChanged, LoadEnded, LoadLost, PlanPublished, Retired, StagingEvent, Woke
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.models.app import Promise, QueryClass
from sluicegate.domain.models.profile import Profile, Quantile
from sluicegate.domain.plan import NO_EPOCH, Epoch, Placement, Plan, follows
from sluicegate.policies.placement.hosted_variants import hosted_variant, largest_batch, profile_on
from sluicegate.policies.promises.stream_places import StreamPlaces
from sluicegate.profiles.catalogue.catalogue import Catalogue

Peers = tuple[tuple[str, str], ...]


class Staging:
    """Implements StagingPolicy for one slice of ``device``."""

    def __init__(
        self, device: Device, part: Slice, catalogue: Catalogue, *, quantile: Quantile = "p95", grace: float = 2.5
    ) -> None:
        self._device = device
        self._slice = part
        self._catalogue = catalogue
        self.quantile: Quantile = quantile
        self._grace = grace
        self._memory = part.memory_bytes or device.memory_bytes
        self._epoch: Epoch = NO_EPOCH
        self._target: dict[str, Placement] = {}
        self._loaded: dict[str, str] = {}  # variant -> app, in the order of loading
        self._loading: str | None = None
        self._failed: set[str] = set()
        self._hosted: dict[str, HostingChanged] = {}
        self._leaving: dict[str, float] = {}  # app -> when it may be retired
        self._beside: dict[str, frozenset[str]] = {}  # what was hosted when it began to leave
        self._acknowledged: Epoch = NO_EPOCH
        self._peers: dict[str, StreamPlaces] = {}
        self._former: dict[str, tuple[Peers, float]] = {}  # until when the peers of the plans before count

    @property
    def epoch(self) -> Epoch:
        """Newest epoch seen."""
        return self._epoch

    @property
    def hosted_apps(self) -> tuple[str, ...]:
        """Apps that something is hosted for."""
        return tuple(self._hosted)

    @property
    def loaded(self) -> tuple[str, ...]:
        """Variants loaded, in the order of loading."""
        return tuple(self._loaded)

    def wants(self, app: str) -> bool:
        """Whether queries of ``app`` can be answered here, now or once loading ends."""
        return app in self._hosted or app in self._target

    def handle(self, event: StagingEvent, now: float) -> list[StagingAction]:
        """Decide; see the rules of the module. Raises IllegalEventError for a load that was never asked for."""
        match event:
            case PlanPublished(plan):
                if not follows(plan.epoch, self._epoch):
                    return []
                self._epoch = plan.epoch
                mine = plan.of_device(self._device.name)
                before, self._target = self._target, {p.app: p for p in mine if p.slice == self._slice.name}
                self._failed.clear()
                back = self._mark_leaving()
                dropped = [app for app in before if not self.wants(app)]  # before anything was hosted for them
                forgotten = [action for app in dropped for action in self._forget_app(app)]
                met = self._meet(plan, now)
                return [*forgotten, *back, *met, *self._give_way(), *self._advance(now), *self._tell_peers()]
            case LoadEnded(variant, ok):
                if variant != self._loading:
                    raise IllegalEventError(f"{variant} ended loading; {self._loading} was being loaded")
                self._loading = None
                app = self._catalogue.variants[variant].app
                if not ok:
                    self._failed.add(variant)
                elif not self.wants(app):  # no more, since it was asked for
                    return [Unload(variant), *self._advance(now)]
                else:
                    self._loaded[variant] = app
                return self._advance(now)
            case LoadLost(variant):
                return self._lose(variant)
            case Woke():
                due = [app for app, at in self._leaving.items() if at <= now]
                parted = [app for app, (_, until) in self._former.items() if until <= now]
                later = [
                    at for at in (*self._leaving.values(), *(u for _, u in self._former.values())) if now < at < inf
                ]
                for app in parted:  # routers have switched: those that served it before count no longer
                    del self._former[app]
                return [*self._tell_peers(), *(Retire(app) for app in due), *([WakeAt(min(later))] if later else [])]
            case Retired(app):
                if self._leaving.get(app, inf) > now:  # a plan wanted it back meanwhile, and maybe let it go again
                    return []
                del self._leaving[app]
                return [*self._forget_app(app), *self._give_way()]
            case _ as unreachable:
                assert_never(unreachable)

    def _meet(self, plan: Plan, now: float) -> list[StagingAction]:
        """Note the peers of apps with a promise, hosted here or not. What they were before counts for a while."""
        actions: list[StagingAction] = []
        for app in sorted({p.app for p in plan.placements} | self._peers.keys()):
            known = self._catalogue.apps.get(app)
            if known is None or not known.promise.active:
                continue
            peers, before = self._peers_of(app), self._peers.get(app)
            places = self._peers[app] = StreamPlaces.of(plan, app)
            if before is not None and (before.places, before.cycle) != (places.places, places.cycle):
                until = now + self._loading_s(before.targets, places.targets) + self._grace
                if app in self._former:  # what the plan before brought may still load
                    until = max(until, self._former[app][1])
                self._former[app] = (peers, until)
                actions.append(WakeAt(until))
        return actions

    def _loading_s(self, before: Sequence[Placement], after: Sequence[Placement]) -> float:
        """How long the longest load of what is new may take, wherever it is."""
        held = {(p.device, p.slice, variant) for p in before for variant in p.variants}
        new = {variant for p in after for variant in p.variants if (p.device, p.slice, variant) not in held}
        loads = [profile.load for (variant, _), profile in self._catalogue.profiles.items() if variant in new]
        return max(loads, default=0.0)

    def _peers_of(self, app: str) -> Peers:
        former = self._former.get(app)
        peers = self._peers[app].places if app in self._peers else ()
        return peers if former is None else tuple(sorted({*peers, *former[0]}))

    def _part_of(self, app: str) -> Promise | None:
        """What this slice keeps of the own stream; None: nothing is known of its peers."""
        if app not in self._peers:
            return None
        promise = self._catalogue.apps[app].promise
        if app in self._former:
            return promise.among(len(self._peers_of(app)))
        return self._peers[app].part(promise, (self._device.name, self._slice.name))

    def _tell_peers(self) -> list[StagingAction]:
        """Tell what is hosted who its peers are and what is its part, where that has changed."""
        told: list[StagingAction] = []
        for app, change in self._hosted.items():
            if app in self._peers:
                shares = self._peers[app].shares if app in self._target else change.shares
                met = replace(change, peers=self._peers_of(app), part=self._part_of(app), shares=shares)
                if met != change:
                    self._hosted[app] = met
                    told.append(Host(met))
        return told

    def _mark_leaving(self) -> list[StagingAction]:
        """Note what leaves; says of what comes back that its streams were elsewhere."""
        back = [app for app in self._target if self._leaving.pop(app, None) is not None]
        moved = [replace(self._hosted[app], shares=()) for app in back if self._hosted[app].shares]
        self._hosted |= {change.app: change for change in moved}
        for app in self._hosted:
            if app not in self._target and app not in self._leaving:
                self._leaving[app] = inf
                self._beside[app] = frozenset(self._hosted)
        return [Host(change) for change in moved]

    def _aside(self, app: str) -> bool:
        apps = self._catalogue.apps
        promised = [one for one in {*self._hosted, *self._target} if apps[one].promise.active]
        if not promised or app in promised:
            return False
        return app in self._leaving or any(app not in self._beside[one] for one in promised if one in self._leaving)

    def _give_way(self) -> list[StagingAction]:
        """Say what gives way from now on, and what does no longer."""
        changed = [replace(c, aside=not c.aside) for app, c in self._hosted.items() if c.aside is not self._aside(app)]
        self._hosted |= {change.app: change for change in changed}
        return [Host(change) for change in changed]

    def _part_from_leaving(self, now: float) -> list[StagingAction]:
        """Nothing is left to load: what leaves may go after a while."""
        fresh = [app for app, at in self._leaving.items() if at == inf]
        for app in fresh:
            self._leaving[app] = now + self._grace
        return [WakeAt(now + self._grace)] if fresh else []

    def _advance(self, now: float) -> list[StagingAction]:
        """Switch the apps that are complete, then load the next variant or acknowledge."""
        actions: list[StagingAction] = []
        for app, placement in self._target.items():
            if all(v in self._loaded or v in self._failed for v in placement.variants):
                actions += self._switch(app, placement)
        if self._loading is not None:
            return actions
        wanted = self._next_wanted()
        if wanted is not None:
            variant, placement = wanted
            profile = self._profile(variant)
            most = max(placement.max_batch, largest_batch(self._catalogue, profile, self.quantile))
            actions += self._make_room(variant)
            self._loading = variant
            actions.append(Load(variant, min(most, profile.max_batch)))
        elif self._acknowledged != self._epoch:
            self._acknowledged = self._epoch
            names = tuple(v for p in self._target.values() for v in p.variants)
            ready = tuple(v for v in names if v in self._loaded)
            actions.append(Acknowledge(self._epoch, ready, tuple(v for v in names if v in self._failed)))
            actions += self._part_from_leaving(now)
        return actions

    def _next_wanted(self) -> tuple[str, Placement] | None:
        for placement in self._target.values():
            for variant in placement.variants:
                if variant not in self._loaded and variant not in self._failed:
                    return variant, placement
        return None

    def _switch(self, app: str, placement: Placement) -> list[StagingAction]:
        ready = [v for v in placement.variants if v in self._loaded]
        if not ready:
            return []
        ready.sort(key=lambda v: (-self._catalogue.variants[v].accuracy, v))
        slo = placement.slo or self._catalogue.apps[app].slo
        hosted = tuple(
            hosted_variant(self._catalogue, self._profile(v), placement.max_batch, self.quantile, burst=True)
            for v in ready
        )
        known = self._catalogue.apps[app]
        loose = known.query_class is QueryClass.BEST_EFFORT and not known.promise.active
        part, aside = self._part_of(app), self._aside(app)
        shares = self._peers[app].shares if known.promise.active and app in self._peers else ()
        change = HostingChanged(app, hosted, slo, known.promise, self._peers_of(app), part, loose, aside, shares)
        actions: list[StagingAction] = []
        if self._hosted.get(app) != change:
            self._hosted[app] = change
            actions.append(Host(change))
        old = [v for v, of in self._loaded.items() if of == app and v not in placement.variants]
        for variant in old:
            del self._loaded[variant]
            actions.append(Unload(variant))
        return actions

    def _profile(self, variant: str) -> Profile:
        return profile_on(self._catalogue, self._device, self._slice.name, variant)

    def _make_room(self, variant: str) -> list[StagingAction]:
        if not self._memory:
            return []
        need = self._profile(variant).memory_bytes
        used = sum(self._profile(v).memory_bytes for v in self._loaded)
        kept = {v for p in self._target.values() for v in p.variants}
        actions: list[StagingAction] = []
        for old in [v for v in self._loaded if v not in kept]:
            if used + need <= self._memory:
                break
            used -= self._profile(old).memory_bytes
            actions += self._forget(old)
        return actions

    def _forget(self, variant: str) -> list[StagingAction]:
        """Forget one variant now; its app goes on with what is left of its hosting."""
        app = self._loaded.pop(variant)
        actions: list[StagingAction] = [Unload(variant)]
        change = self._hosted.get(app)
        if change is not None:
            kept = tuple(h for h in change.hosted if h.variant != variant)
            left = replace(change, hosted=kept)
            if left.hosted:
                self._hosted[app] = left
            else:
                del self._hosted[app]
                self._leaving.pop(app, None)
            actions.insert(0, Host(left))
        return actions

    def _lose(self, variant: str) -> list[StagingAction]:
        if variant not in self._loaded:
            return []
        self._failed.add(variant)
        return self._forget(variant)

    def _forget_app(self, app: str) -> list[StagingAction]:
        actions: list[StagingAction] = []
        change = self._hosted.pop(app, None)
        known = self._catalogue.apps[app]
        slo, promise = (change.slo, change.promise) if change else (known.slo, known.promise)
        actions.append(Host(HostingChanged(app, (), slo, promise)))
        for variant in [v for v, of in self._loaded.items() if of == app]:
            del self._loaded[variant]
            actions.append(Unload(variant))
        return actions
