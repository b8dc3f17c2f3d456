"""What stages have noted of devices, beside their heartbeats: taken back soon, not needed now, paid otherwise.

A device that any stage has withdrawn is taken for one that is leaving: plans leave it out and go on naming its worker,
which finishes what it has. Once no note withdraws it, it is as its heartbeats say.
"""

from dataclasses import replace

from sluicegate.domain.events import DeviceSeen
from sluicegate.planner.control.events import DeviceNoted


class DeviceNotes:
    """The newest note of each stage on each device."""

    def __init__(self) -> None:
        self._notes: dict[str, dict[str, DeviceNoted]] = {}

    def put(self, note: DeviceNoted) -> None:
        """A note, or its end."""
        self._notes.setdefault(note.device, {})[note.by] = note

    def withdrawn(self, device: str) -> bool:
        """Whether a stage has plans leave it out."""
        return any(note.withdrawn for note in self._notes.get(device, {}).values())

    def noted(self, seen: DeviceSeen) -> DeviceSeen:
        """A heartbeat with what is noted of its device."""
        notes = self._notes.get(seen.device)
        if not notes:
            return seen
        prices = [note.price for _, note in sorted(notes.items()) if note.price is not None]
        return replace(
            seen, leaving=seen.leaving or self.withdrawn(seen.device), price=prices[-1] if prices else seen.price
        )
