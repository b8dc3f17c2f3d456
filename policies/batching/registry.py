"""Batching policies by name."""

from collections.abc import Callable
from inspect import signature
from types import MappingProxyType
from typing import Any

from domain.errors import ConfigurationError
from policies.batching.deadline import DeadlineBatching
from policies.batching.eager import EagerBatching
from policies.protocols import BatchingPolicy

BATCHING: MappingProxyType[str, Callable[..., BatchingPolicy]] = MappingProxyType(
    {
        EagerBatching.name: EagerBatching,
        DeadlineBatching.name: DeadlineBatching,
    }
)
"""Name -> class. Options are the keyword arguments of its constructor."""


def batching(name: str, **options: Any) -> Callable[[], BatchingPolicy]:
    """A factory of policies called ``name``. Raises ConfigurationError for an unknown name or option."""
    known = BATCHING.get(name)
    if known is None:
        raise ConfigurationError(f"batching policy {name!r} is unknown; choose one of {', '.join(sorted(BATCHING))}")
    allowed = signature(known).parameters
    for option in options:
        if option not in allowed:
            raise ConfigurationError(
                f"batching policy {name!r} has no option {option!r}; it takes {', '.join(allowed) or 'none'}"
            )
    known(**options)  # a bad value is an error now, not at the first query
    return lambda: known(**options)
