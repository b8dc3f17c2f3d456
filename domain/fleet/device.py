"""Devices and the slices inside them."""

from collections.abc import Mapping
from dataclasses import dataclass

WHOLE = "whole"


def profile_type(device_type: str, slice_profile: str) -> str:
    """Device type that profiles of a slice are filed under: the device's own for a whole one, else "type:profile"."""
    return device_type if slice_profile == WHOLE else f"{device_type}:{slice_profile}"


def executors_of(executors: Mapping[str, int], device_type: str, slice_profile: str) -> int:
    """How many run on such a slice. ``executors``: by device type or type of profiles, where there are several."""
    return executors.get(profile_type(device_type, slice_profile)) or executors.get(device_type) or 1


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a device with its own memory. ``profile``: "whole" or a MIG profile such as "3g"."""

    name: str = WHOLE
    profile: str = WHOLE
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU or a CPU worker: one work topic. ``type`` names its pool; devices of a type are interchangeable.

    ``price``: money an hour. ``memory_bytes`` 0 means unlimited.
    """

    name: str
    type: str
    memory_bytes: int = 0
    slices: tuple[Slice, ...] = (Slice(),)
    price: float = 0.0
    spot: bool = False
