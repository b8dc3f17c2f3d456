"""The port to who sells instances. Calls may take minutes: nothing on the query path waits for them.

A provider answers a request for spot with yes or no, brings instances up later, and gives notice before it takes one
back.
"""

from dataclasses import dataclass
from typing import Protocol

from sluicegate.domain.errors import SluiceError
from sluicegate.planner.capacity.procurement import Kind, Prices


class ProviderError(SluiceError):
    """The provider could not be reached or refused for another reason than a lack of spot."""


@dataclass(frozen=True, slots=True)
class Notice:
    """The instance behind ``node`` is taken back at ``deadline`` (wall seconds)."""

    node: str
    deadline: float


class Provider(Protocol):
    """Sells instances by node name."""

    @property
    def prices(self) -> Prices:
        """Money an hour for one GPU."""
        ...

    async def request_spot(self, node: str) -> bool:
        """Whether spot is granted for ``node``; if so it comes up later. Raises ProviderError."""
        ...

    async def order(self, node: str) -> None:
        """Order an on-demand instance for ``node``. Raises ProviderError."""
        ...

    async def up(self, node: str, kind: Kind) -> bool:
        """Whether the instance runs by now. Raises ProviderError."""
        ...

    async def release(self, node: str, kind: Kind) -> None:
        """Give an instance back; unknown ones are ignored. Raises ProviderError."""
        ...


class NoticeSource(Protocol):
    """Says which instances are taken back."""

    async def poll(self) -> tuple[Notice, ...]:
        """Notices not told before. Raises ProviderError where the source cannot be read."""
        ...
