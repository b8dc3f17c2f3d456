"""The fields of a scenario file that say what goes wrong."""

from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

from sluicegate.profiles.formats.field_types import NotNegative, Positive, Share, Text
from sluicegate.simulator.scenario.section import Section


def _after_it_begins(until: float, told: ValidationInfo) -> float:
    begins = told.data.get("at_s", 0.0)
    if until <= begins:
        raise ValueError(f"{until:g} is not after at_s, {begins:g}: give a later time, or none if it never ends")
    return until


Until = Annotated[Positive, AfterValidator(_after_it_begins)]
"""Seconds, of what begins at the field ``at_s`` before it."""


class SlowBatches(Section):
    """A share of all batches takes ``factor`` times as long."""

    probability: Share = 0.0
    factor: Positive = 1.0


class FailureSpec(Section):
    """A device (name or pattern) dies, and returns unless ``until_s`` is left out."""

    device: Text
    at_s: NotNegative
    until_s: Until | None = None


class ExecutorFailureSpec(Section):
    """The process behind an executor of a device (name or pattern) ends at ``at_s``: of ``slice``, or of all."""

    device: Text
    at_s: NotNegative
    slice: str = ""


class StragglerSpec(Section):
    """A device (name or pattern) is slower by ``factor`` for a while."""

    device: Text
    factor: Positive
    at_s: NotNegative = 0.0
    until_s: Until | None = None


class StarvedHostSpec(Section):
    """The machine of a device (name or pattern) lacks time for a while: its worker hears of batches' ends late."""

    device: Text
    delay_ms: Positive
    at_s: NotNegative = 0.0
    until_s: Until | None = None
