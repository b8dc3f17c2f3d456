"""Settings of the object store that records may refer to."""

from typing import Annotated

from pydantic import AfterValidator, Field

from sluicegate.profiles.formats.field_types import Seconds, Text, distinct
from sluicegate.sluice.settings.endpoint_settings import Section
from sluicegate.streams.objects.claims import MAX_BYTES, ObjectRules, check_prefix
from sluicegate.streams.objects.store import ObjectStore

Place = Annotated[Text, AfterValidator(check_prefix)]


class ObjectSettings(Section):
    """What is too large for topics lies in an object store (``pip install 'sluicegate[objects]'``, and what speaks its
    protocol), and records refer to it.

    ``prefixes``: below which a query's inputs may lie (``s3://bucket/queries/``); none by default: no query may refer
    to anything. ``results``: below which results go that their topic does not take; left out: they fail. ``max_bytes``:
    of an object; ``timeout_s``: that an access may take; ``threads``: accesses at once; ``held_bytes``: of inputs that
    were read and are not answered yet, in one process.
    """

    prefixes: Annotated[tuple[Place, ...], AfterValidator(distinct), Field(max_length=64)] = ()
    results: Place | None = None
    max_bytes: int = Field(default=64 << 20, gt=0, le=MAX_BYTES)
    timeout_s: Seconds = 5.0
    threads: int = Field(default=8, ge=1, le=256)
    held_bytes: int = Field(default=512 << 20, ge=1 << 20)

    def rules(self, max_element_bytes: int) -> ObjectRules:
        """What may be referred to."""
        return ObjectRules(prefixes=self.prefixes, max_bytes=self.max_bytes, max_element_bytes=max_element_bytes)

    def store(self, max_element_bytes: int) -> ObjectStore | None:
        """None where nothing is set. Raises ConfigurationError where what an address needs is not installed."""
        if not self.prefixes and self.results is None:
            return None
        return ObjectStore(
            self.rules(max_element_bytes),
            results=self.results,
            timeout=self.timeout_s,
            threads=self.threads,
            held_bytes=self.held_bytes,
        )
