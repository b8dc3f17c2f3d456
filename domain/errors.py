"""Errors that name the field, its value and the remedy, split by who can mend them."""


class SluiceError(Exception):
    """Root of every error raised on purpose."""


class InvalidInputError(SluiceError):
    """Something from outside is malformed: the sender mends it.

    ``field`` names what is wrong, ``problem`` says how and what would be right.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem

    def __reduce__(self) -> tuple[type["InvalidInputError"], tuple[str, str]]:  # type: ignore[explicit-override]
        """As it is made, so that it comes back whole from another process."""
        return type(self), (self.field, self.problem)


class ConfigurationError(SluiceError):
    """A setting, file or missing component: the operator mends it. The message is one line with a remedy."""


class IllegalEventError(SluiceError):
    """A state machine was given an event its rules forbid: a defect of ours. Carries the story so far."""

    def __init__(self, problem: str, story: tuple[str, ...] = ()) -> None:
        super().__init__("\n  ".join((problem, *story)))
        self.story = story


class ExecutionError(SluiceError):
    """A model raised while it ran, or its process died. ``fatal`` says that the process is gone, ``apart`` that it was
    a process of that run's own, ``blameless`` that what ran had no part in that."""

    def __init__(self, problem: str, *, fatal: bool = False, apart: bool = False, blameless: bool = False) -> None:
        super().__init__(problem)
        self.fatal = fatal
        self.apart = apart
        self.blameless = blameless


class LoadError(SluiceError):
    """A variant could not be loaded; what was loaded before stays."""


def shown(value: object, most: int = 60) -> str:
    """How an error shows what somebody wrote: its first ``most`` characters."""
    try:
        return repr(value)[:most]
    except (ValueError, RecursionError):  # an integer too long, or lists too deep, to be written
        return f"a {type(value).__name__} too large to be shown"
