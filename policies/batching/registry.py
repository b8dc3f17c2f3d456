"""Batching policies by name, and how apps of a slice take turns."""

from collections.abc import Callable, Iterable, Mapping
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
from sluicegate.policies.named_options import factory_of
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

_SELECT = frozenset(
    known.name for known in (TableSelection, JellyfishPlus, ModelSwitching, PublishedModelSwitching, MostAccurateFit)
)

STATIONS: MappingProxyType[str, type[Station]] = MappingProxyType({"urgency": Station, "duty-cycle": DutyCycleStation})
"""Whose turn it is on a slice that hosts several apps, by name: the most urgent query's, or each app's in turn."""


def batching(name: str, **options: Any) -> Callable[[], BatchingPolicy]:
    """A factory of policies called ``name``. Raises ConfigurationError as ``factory_of`` does."""
    return factory_of("batching", BATCHING, name, options)


def takes(name: str, option: str) -> bool:
    """Whether the policy called ``name`` has an option of that name; False for unknown policies."""
    known = BATCHING.get(name)
    return known is not None and option in signature(known).parameters


def check_whole(name: str, options: Mapping[str, Any], variants: Mapping[str, int]) -> None:
    """Raises ConfigurationError where what the policy called ``name`` chooses by is missing, so that it would answer
    with one and the same variant always. ``variants``: how many there are, by app."""
    if takes(name, "capable") and not options.get("capable"):
        raise ConfigurationError(
            f"worker.batching: {name!r} without measurements always runs the fastest variant; give worker."
            "batching_options.capable (queries/s that each variant was measured to carry, by name), or choose "
            "jellyfish-plus, which needs none"
        )
    if takes(name, "tables") and variants and max(variants.values()) < 2:
        alone = ", ".join(sorted(variants))
        raise ConfigurationError(
            f"worker.batching: {name!r} chooses among an app's variants, and {alone} has one each; register a smaller "
            "or a larger model beside it (sluice register), or choose adaptive"
        )


def check_shared(name: str, executors: Mapping[str, int], promised: Iterable[str]) -> None:
    """Raises ConfigurationError where several executors share slices, and what is asked counts on one batch at a time.

    ``executors``: by device type or slice; ``promised``: apps with a promise.
    """
    several = ", ".join(sorted(kind for kind, number in executors.items() if number > 1))
    if several and selects(name):
        raise ConfigurationError(
            f"slices.executors: several on {several}, and the batching rule {name!r} chooses for one at a time; choose "
            "adaptive, deadline or eager, or leave them out"
        )
    if several and (apps := ", ".join(sorted(promised))):
        raise ConfigurationError(
            f"slices.executors: several on {several}, and what {apps} was promised rests on one batch at a time; leave "
            "them out, or the promise"
        )


def selects(name: str) -> bool:
    """Whether the policy called ``name`` picks one of the variants that a slice holds for each batch."""
    return name in _SELECT


def keeps_promises(name: str) -> bool:
    """Whether the policy called ``name`` keeps what streams were promised."""
    known = BATCHING.get(name)
    return isinstance(known, type) and issubclass(known, SpreadBatching)
