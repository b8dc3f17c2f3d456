"""Batching policies by name, and how apps of a slice take turns."""

from collections.abc import Callable
from inspect import signature
from types import MappingProxyType
from typing import Any

from sluicegate.domain.errors import ConfigurationError
from sluicegate.policies.batching.adaptive import AdaptiveBatching
from sluicegate.policies.batching.aimd import AdditiveIncrease
from sluicegate.policies.batching.deadline import DeadlineBatching
from sluicegate.policies.batching.eager import EagerBatching
from sluicegate.policies.batching.early_drop import EarlyDrop, LazyDrop
from sluicegate.policies.batching.spread import (
    BalancedSpread,
    GreedySpread,
    GroupedSpread,
    SpreadBatching,
    WeaklyHardSpread,
)
from sluicegate.policies.batching.static import StaticBatching
from sluicegate.policies.mdp_serving.greedy_fit import MostAccurateFit
from sluicegate.policies.mdp_serving.jellyfish_model_switching import (
    JellyfishPlus,
    ModelSwitching,
    PublishedModelSwitching,
)
from sluicegate.policies.mdp_serving.table_policy import TableSelection
from sluicegate.policies.protocols import BatchingPolicy
from sluicegate.policies.serving.duty_cycle import DutyCycleStation
from sluicegate.policies.serving.slice_scheduler import Station

BATCHING: MappingProxyType[str, Callable[..., BatchingPolicy]] = MappingProxyType(
    {
        known.name: known
        for known in (
            AdaptiveBatching,
            StaticBatching,
            DeadlineBatching,
            EagerBatching,
            AdditiveIncrease,
            EarlyDrop,
            LazyDrop,
            GroupedSpread,
            WeaklyHardSpread,
            BalancedSpread,
            GreedySpread,
            TableSelection,
            JellyfishPlus,
            ModelSwitching,
            PublishedModelSwitching,
            MostAccurateFit,
        )
    }
)
"""Name -> class. Options are the keyword arguments of its constructor."""

STATIONS: MappingProxyType[str, type[Station]] = MappingProxyType({"urgency": Station, "duty-cycle": DutyCycleStation})
"""Whose turn it is on a slice that hosts several apps, by name: the most urgent query's, or each app's in turn."""


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


def takes(name: str, option: str) -> bool:
    """Whether the policy called ``name`` has an option of that name; False for unknown policies."""
    known = BATCHING.get(name)
    return known is not None and option in signature(known).parameters


def keeps_promises(name: str) -> bool:
    """Whether the policy called ``name`` keeps what streams were promised."""
    known = BATCHING.get(name)
    return isinstance(known, type) and issubclass(known, SpreadBatching)
