"""Admission policies by name."""

from collections.abc import Callable
from inspect import signature
from types import MappingProxyType
from typing import Any

from sluicegate.domain.errors import ConfigurationError
from sluicegate.policies.admission.deadline_feasibility import DeadlineAdmission
from sluicegate.policies.admission.sustainable import SustainableAdmission
from sluicegate.policies.protocols import AdmissionPolicy

ADMISSION: MappingProxyType[str, Callable[..., AdmissionPolicy]] = MappingProxyType(
    {
        DeadlineAdmission.name: DeadlineAdmission,
        SustainableAdmission.name: SustainableAdmission,
    }
)
"""Name -> class. Options are the keyword arguments of its constructor."""


def admission(name: str, **options: Any) -> Callable[[], AdmissionPolicy]:
    """A factory of policies called ``name``. Raises ConfigurationError for an unknown name or option."""
    known = ADMISSION.get(name)
    if known is None:
        raise ConfigurationError(f"admission policy {name!r} is unknown; choose one of {', '.join(sorted(ADMISSION))}")
    allowed = signature(known).parameters
    for option in options:
        if option not in allowed:
            raise ConfigurationError(
                f"admission policy {name!r} has no option {option!r}; it takes {', '.join(allowed) or 'none'}"
            )
    known(**options)
    return lambda: known(**options)
