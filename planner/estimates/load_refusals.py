"""Devices that load nothing: it is the device then, not the variants, and the rest of its type shall not pay for it."""

from collections.abc import Collection, Mapping, Sequence

_APPS = 2


class LoadRefusals:
    """Which devices are set aside. ``hold``: seconds that one is.

    A device is as soon as variants of two apps failed there and it holds none, while another of its type is counted
    on: where none is, what fails is left out on the type, as where a variant is the reason. Two of one app are not
    enough: they may have been registered together, and be no good anywhere.
    """

    def __init__(self, hold: float) -> None:
        self._hold = hold
        self._failed: dict[str, dict[str, str]] = {}
        self._until: dict[str, float] = {}

    @property
    def aside(self) -> Collection[str]:
        """Devices that nothing is to be placed on."""
        return self._until.keys()

    def acknowledged(
        self, device: str, loaded: Sequence[str], failed: Mapping[str, str], others: Collection[str], now: float
    ) -> tuple[str, ...]:
        """What failed on ``device`` where that is set aside from now on, by name.

        ``failed``: variants with their apps. ``others``: of its type, that plans may use.
        """
        if loaded:
            self._failed.pop(device, None)
            return ()
        if not failed or device in self._until:
            return ()
        known = self._failed.setdefault(device, {})
        known.update(failed)
        another = any(other != device and other not in self._until for other in others)
        if len({*known.values()}) < _APPS or not another:
            return ()
        self._until[device] = now + self._hold
        return tuple(sorted(self._failed.pop(device)))

    def forget(self, device: str) -> bool:
        """Another worker runs it, or none; whether it was aside."""
        self._failed.pop(device, None)
        return self._until.pop(device, None) is not None

    def due(self, now: float) -> tuple[str, ...]:
        """Devices that were aside for long enough, and are no more."""
        found = tuple(sorted(device for device, until in self._until.items() if until <= now))
        for device in found:
            del self._until[device]
        return found
