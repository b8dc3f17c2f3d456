"""Routing policies by name."""

from collections.abc import Callable
from inspect import signature
from types import MappingProxyType
from typing import Any

from sluicegate.domain.errors import ConfigurationError
from sluicegate.policies.batching.registry import selects
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
    """A factory, app -> policy called ``name``. Raises ConfigurationError for an unknown name or option."""
    known = ROUTING.get(name)
    if known is None:
        raise ConfigurationError(f"routing policy {name!r} is unknown; choose one of {', '.join(sorted(ROUTING))}")
    allowed = [p for p in signature(known).parameters if p != "app"]
    for option in options:
        if option not in allowed:
            raise ConfigurationError(
                f"routing policy {name!r} has no option {option!r}; it takes {', '.join(allowed) or 'none'}"
            )
    known("", **options)  # a bad value is an error now, not at the first query
    return lambda app: known(app, **options)
