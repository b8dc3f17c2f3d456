"""An instance: a variant on a worker, and the state that monitoring finds it in."""

from enum import StrEnum


class InstanceState(StrEnum):
    """Of a variant on a worker."""

    INACTIVE = "inactive"
    ACTIVE = "active"
    OVERLOADED = "overloaded"
    INTERFERED = "interfered"
