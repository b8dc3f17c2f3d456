"""Leadership on the log: who holds it, in which term, renewed how often."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One record of a lease. ``renewals``: counts the records of a term, from 0, its claim.

    ``claims``: (term, renewals) of the record that a claim follows upon; None for a renewal or release. ``released``:
    the holder ended in good order, so that anybody may claim at once.
    """

    term: int
    holder: str
    renewals: int = 0
    claims: tuple[int, int] | None = None
    released: bool = False

    @property
    def place(self) -> tuple[int, int]:
        """What a claim names that follows upon this record."""
        return (self.term, self.renewals)
