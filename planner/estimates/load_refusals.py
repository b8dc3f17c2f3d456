"""Devices that load nothing: what others of their type hold tells whether the device is at fault or the variants."""

from collections.abc import Callable, Collection, Mapping

_VARIANTS = 2


class LoadRefusals:
    """Which devices are set aside. ``hold``: seconds that one is. ``only``: whether a variant is all that its app has
    left, so that it is planned with wherever it failed.

    A device is as soon as it holds none, two variants failed there since it last held one, or one that is all its app
    has, and another of its type that plans may use holds one of those. Where no other does, they may be no good
    anywhere: what fails is left out on the type then.
    """

    def __init__(self, hold: float, only: Callable[[str, float], bool]) -> None:
        self._hold = hold
        self._only = only
        self._held: dict[str, frozenset[str]] = {}
        self._failed: dict[str, set[str]] = {}
        self._until: dict[str, float] = {}

    @property
    def aside(self) -> Collection[str]:
        """Devices that nothing is to be placed on."""
        return self._until.keys()

    def acknowledged(
        self, device: str, held: Collection[str], failed: Collection[str], others: Collection[str], now: float
    ) -> Mapping[str, tuple[str, ...]]:
        """Devices that are set aside from now on, each with what it refused, by name.

        ``held``, ``failed``: variants on ``device``. ``others``: of its type, that plans may use.
        """
        self._held[device] = frozenset(held)
        if held:
            self._failed.pop(device, None)
        elif failed and device not in self._until:
            self._failed.setdefault(device, set()).update(failed)
        elsewhere: set[str] = set().union(*(self._held.get(d, ()) for d in others if d not in self._until))
        found: dict[str, tuple[str, ...]] = {}
        for name in sorted({device, *others} & self._failed.keys()):
            refused = self._failed[name]
            enough = len(refused) >= _VARIANTS or any(self._only(variant, now) for variant in refused)
            if enough and not elsewhere.isdisjoint(refused):
                self._until[name] = now + self._hold
                found[name] = tuple(sorted(self._failed.pop(name)))
        return found

    def forget(self, device: str) -> bool:
        """Another worker runs it, or none; whether it was aside."""
        self._held.pop(device, None)
        self._failed.pop(device, None)
        return self._until.pop(device, None) is not None

    def due(self, now: float) -> tuple[str, ...]:
        """Devices that were aside for long enough, and are no more."""
        found = tuple(sorted(device for device, until in self._until.items() if until <= now))
        for device in found:
            del self._until[device]
        return found
