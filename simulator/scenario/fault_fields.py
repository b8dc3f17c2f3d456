"""The fields of a scenario file that say what goes wrong."""

from sluicegate.profiles.formats.field_types import NotNegative, Positive, Share, Text
from sluicegate.simulator.scenario.section import Section


class SlowBatches(Section):
    """A share of all batches takes ``factor`` times as long."""

    probability: Share = 0.0
    factor: Positive = 1.0


class FailureSpec(Section):
    """A device (name or pattern) dies, and returns unless ``until_s`` is left out."""

    device: Text
    at_s: NotNegative
    until_s: Positive | None = None


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
    until_s: Positive | None = None


class StarvedHostSpec(Section):
    """The machine of a device (name or pattern) lacks time for a while: its worker hears of batches' ends late."""

    device: Text
    delay_ms: Positive
    at_s: NotNegative = 0.0
    until_s: Positive | None = None
