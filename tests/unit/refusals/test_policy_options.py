"""Every option of every policy: what it is where it is not given, and values at, inside and beyond its bounds.

An option without a row fails. Beyond every bound lies what is no number.
"""

from collections.abc import Callable, Iterator
from inspect import signature
from math import inf, nan
from typing import Any

import pytest

from sluicegate.domain.errors import ConfigurationError, SluiceError
from sluicegate.policies.admission.registry import ADMISSION, admission
from sluicegate.policies.batching.registry import BATCHING, batching
from sluicegate.policies.batching.spread import BalancedSpread
from sluicegate.policies.routing.registry import ROUTING, routing

Row = tuple[Any, tuple[Any, ...], tuple[Any, ...]]
"""Where it is not given, taken, refused."""
LEAST = 5e-324

_CAPPED: dict[str, Row] = {"max_latency_share": (0.5, (LEAST, 1.0), (0.0, -0.1, 1.0000001, nan, inf))}
_MARGIN: Row = (1.0, (LEAST, 3.0), (0.0, -1.0, nan, inf))
_LOAD: dict[str, Row] = {
    "workers": (1, (1, 64), (0, -1)),
    "qps": (None, (0.0, 9.5), (-0.1, nan)),
    "window_s": (0.5, (LEAST, 60.0), (0.0, -1.0, nan)),
}
_PROMISE: dict[str, Row] = {
    "batch": (None, (1, 64), (0, -1)),
    "max_consecutive": (None, (0, 3), (-1,)),
    "weakly_hard": ((), ([(0, 1)], [(2, 10), (1, 5)]), ([(-1, 5)], [(1, 0)])),
    "others_s": (0.0, (0.0, 0.2), (-LEAST, nan, inf)),
    "calm": (200, (1, 9), (0, -1)),
}
_SPREAD: dict[str, Row] = {**_PROMISE, "lateness": (0.0, (0.0, 1.0), (-LEAST, 1.0000001, nan))}
_SWITCHING: dict[str, Row] = {"capable": (None, ({}, {"v": 9.0}), ()), **_LOAD}

TABLE: dict[str, dict[str, dict[str, Row]]] = {
    "batching": {
        "adaptive": {
            "patience": (1.0, (0.0, 2.0), (-LEAST, nan, inf)),
            "guard_s": (0.0, (0.0, 0.1), (-LEAST, nan, inf)),
            **_PROMISE,
        },
        "static": {"size": (8, (1, 64), (0, -1)), "timeout_s": (None, (0.0, 2.5), (-LEAST, nan, inf))},
        "deadline": {"guard_s": (0.0, (0.0, 0.1), (-LEAST, nan, inf)), **_CAPPED},
        "eager": {"max_latency_share": (1.0, *_CAPPED["max_latency_share"][1:])},
        "aimd": {
            "step": (1.0, (LEAST, 9.0), (0.0, -1.0, nan)),
            "backoff": (0.9, (LEAST, 0.9999999), (0.0, 1.0, nan)),
            "objective": (0.5, (LEAST, 1.0), (0.0, -1.0, nan)),
        },
        "early-drop": {"margin": _MARGIN, **_CAPPED},
        "lazy-drop": {"margin": _MARGIN, **_CAPPED},
        "spread-drop": _SPREAD,
        "weakly-hard": _SPREAD,
        "balanced": _SPREAD,
        "greedy": _SPREAD,
        "table": {
            "tables": ((), ((),), ()),
            "qps": (None, (0.0, 9.5), (-LEAST, nan, inf)),
            "window_s": (0.5, (LEAST, 60.0), (0.0, nan, inf)),
            "tolerance": (0.05, (0.0, 1.5), (-LEAST, nan, inf)),
            "margin": _MARGIN,
            "guard_s": (0.0, (0.0, 0.1), (-LEAST, nan, inf)),
        },
        "jellyfish-plus": _LOAD,
        "model-switching": _SWITCHING,
        "model-switching-published": _SWITCHING,
        "most-accurate-fit": {},
    },
    "routing": {
        "weighted": {"turns_s": (None, (0.0, 0.5), (-LEAST, nan, inf))},
        "accuracy-first": {},
        "slack-blend": {
            "steepness": (1.5, (LEAST, 50.0), (0.0, -1.0, nan)),
            "share": (0.7, (0.0, 0.9999999), (-LEAST, 1.0, nan)),
        },
        "packing": {"margin": (0.4, (0.0, 0.9999999), (-LEAST, 1.0, nan))},
        "streams": {},
    },
    "admission": {
        "deadline": {"max_horizon_s": (3600.0, (LEAST, inf), (0.0, -1.0, nan))},
        "sustainable": {
            "bound": (1, (0, 9, None), (-1,)),
            "window_s": (1.0, (LEAST, 60.0), (0.0, -1.0, nan)),
            "mode": ("enforce", ("degrade", "observe"), ("", "enforced")),
            "degraded_bound": (None, (1, 2), (0, -1)),
            "calm": (200, (1, 9), (0, -1)),
            "max_horizon_s": (3600.0, (LEAST, inf), (0.0, -1.0, nan)),
            "weights": (None, ({}, {"/a": LEAST, "/b": 9.0}), ({"/a": 0.0}, {"/a": -1.0}, {"/a": nan}, {"/a": inf})),
        },
    },
}
KINDS: dict[str, tuple[Any, Callable[..., Callable[..., object]]]] = {
    "batching": (BATCHING, batching),
    "routing": (ROUTING, routing),
    "admission": (ADMISSION, admission),
}


def test_every_option_has_a_row_and_is_what_the_row_says_where_it_is_not_given() -> None:
    for kind, (known, _) in KINDS.items():
        found = {
            name: {p: q.default for p, q in signature(policy).parameters.items() if p != "app"}
            for name, policy in known.items()
        }
        assert found == {name: {p: row[0] for p, row in rows.items()} for name, rows in TABLE[kind].items()}


def cases() -> Iterator[Any]:
    for kind, named in TABLE.items():
        for name, rows in named.items():
            for option, (_, good, bad) in rows.items():
                yield pytest.param(kind, name, option, good, bad, id=f"{kind}-{name}-{option}")


@pytest.mark.parametrize(("kind", "name", "option", "good", "bad"), [*cases()])
def test_an_option_takes_what_is_within_its_bounds_and_refuses_the_rest_at_once(
    kind: str, name: str, option: str, good: tuple[Any, ...], bad: tuple[Any, ...]
) -> None:
    make = KINDS[kind][1]
    for value in good:
        factory = make(name, **{option: value})
        made = factory("an app") if kind == "routing" else factory()
        assert made is not (factory("an app") if kind == "routing" else factory()), "each user has one of its own"
    for value in bad:
        with pytest.raises(SluiceError) as refused:
            make(name, **{option: value})
        assert option in str(refused.value) or repr(value) in str(refused.value), f"{value} is beyond"


@pytest.mark.parametrize(("kind", "name", "option", "good", "bad"), [*cases()])
def test_an_option_of_another_type_is_refused_at_once_with_its_name(
    kind: str, name: str, option: str, good: tuple[Any, ...], bad: tuple[Any, ...]
) -> None:
    del good, bad
    for value in ("no such thing", {"a": [None]}, [[1, 2, object()]]):
        with pytest.raises(ConfigurationError, match=f"^{kind} policy '{name}': {option}: "):
            KINDS[kind][1](name, **{option: value})


def test_what_yaml_and_variables_of_the_environment_can_say_is_read() -> None:
    made = batching("balanced", weakly_hard=[["2", 5], (1, 3)], batch="4")()
    assert isinstance(made, BalancedSpread)
    assert (made.own.constraints, made.fixed_batch) == (((1, 3), (2, 5)), 4)


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_policy_or_option_is_refused_with_those_there_are(kind: str) -> None:
    known, make = KINDS[kind]
    with pytest.raises(SluiceError, match=f"{kind} policy 'nobody' is unknown; choose one of {sorted(known)[0]}, "):
        make("nobody")
    for name, rows in TABLE[kind].items():
        with pytest.raises(SluiceError, match=f"{name}' has no option 'sise'; it takes {next(iter(rows), 'none')}"):
            make(name, sise=1)


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_mistyped_policy_or_option_the_nearest_is_asked_for(kind: str) -> None:
    known, make = KINDS[kind]
    for name in known:
        with pytest.raises(SluiceError, match=rf"; did you mean {name}\?$"):
            make(f"{name}x")
    for name, rows in TABLE[kind].items():
        for option in rows:
            with pytest.raises(SluiceError, match=rf"; did you mean {option}\?$"):
                make(name, **{f"{option}x": 1})
