"""Admission policies by name."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from sluicegate.policies.admission.deadline_feasibility import DeadlineAdmission
from sluicegate.policies.admission.sustainable import SustainableAdmission
from sluicegate.policies.named_options import factory_of
from sluicegate.policies.protocols import AdmissionPolicy

ADMISSION: MappingProxyType[str, Callable[..., AdmissionPolicy]] = MappingProxyType(
    {
        DeadlineAdmission.name: DeadlineAdmission,
        SustainableAdmission.name: SustainableAdmission,
    }
)
"""Name -> class. Options are the keyword arguments of its constructor."""


def admission(name: str, **options: Any) -> Callable[[], AdmissionPolicy]:
    """A factory of policies called ``name``. Raises ConfigurationError as ``factory_of`` does."""
    return factory_of("admission", ADMISSION, name, options)
