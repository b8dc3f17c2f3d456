"""Routing policies by name."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from sluicegate.policies.batching.registry import selects
from sluicegate.policies.named_options import factory_of
from sluicegate.policies.protocols import RoutingPolicy
from sluicegate.policies.routing.accuracy_first import AccuracyFirst, SlackBlend
from sluicegate.policies.routing.keyed_streams import StreamRouting
from sluicegate.policies.routing.packing import Packing
from sluicegate.policies.routing.weighted import WeightedRouting

ROUTING: MappingProxyType[str, Callable[..., RoutingPolicy]] = MappingProxyType(
    {
        WeightedRouting.name: WeightedRouting,
        AccuracyFirst.name: AccuracyFirst,
        SlackBlend.name: SlackBlend,
        Packing.name: Packing,
        StreamRouting.name: StreamRouting,
    }
)
"""Name -> class. The app comes first; options are the further keyword arguments of its constructor."""


def default_routing(batching: str, *, scales: bool) -> str:
    """What routes where nothing is said, beside the batching policy of that name.

    Shares where that picks a variant for each batch: nobody knows before when one would be done, and tables count on
    strict turns. Shares as well where instances come and go (``scales``): each shows by its load whether it is needed.
    """
    return WeightedRouting.name if scales or selects(batching) else SlackBlend.name


def routing(name: str, **options: Any) -> Callable[[str], RoutingPolicy]:
    """A factory, app -> policy called ``name``. Raises ConfigurationError as ``factory_of`` does."""
    return factory_of("routing", ROUTING, name, options, "")
