"""What a client raises: one line each, with a remedy."""


class ClientError(Exception):
    """Root of every error that the client raises on purpose: nothing answers, or the client is not connected."""


class InvalidQueryError(ClientError, ValueError):
    """A query cannot be asked as it is. ``field`` names what is wrong, ``problem`` says how and what would be right."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class RefusedError(ClientError):
    """The server's front did not take a request. ``status``: HTTP's. ``retry_after``: seconds after which it may take
    it, None where it did not say."""

    def __init__(self, status: int, problem: str, retry_after: float | None = None) -> None:
        super().__init__(f"refused ({status}): {problem}")
        self.status = status
        self.problem = problem
        self.retry_after = retry_after


class NoOutcomeError(ClientError, TimeoutError):
    """A query has no outcome yet, within the time that the client waits."""
