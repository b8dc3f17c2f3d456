"""What a worker's queries refer to, and results that its topics do not take, in the object store."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.tensor import Tensor
from sluicegate.streams.objects.claims import Claim
from sluicegate.streams.objects.store import ObjectError, ObjectStore
from sluicegate.streams.records import codec

_INLINE = 4096
"""Bytes of an output that stays in its outcome: a label among scores."""


class WorkerObjects:
    """A worker's view of ``store``; None: this process has none."""

    def __init__(self, store: ObjectStore | None) -> None:
        self._store = store

    @property
    def keeps_results(self) -> bool:
        """Whether there is a place for results."""
        return self._store is not None and self._store.results is not None

    async def fetched(self, message: codec.WorkMessage, within: float) -> tuple[Tensor, ...]:
        """A query's tensors, whole, read within so many seconds, which are left until its deadline. Where that is past,
        how it ends is the core's to say: they are read as soon as the store can. Raises ObjectError."""
        if self._store is None:
            raise ObjectError("this worker reads no objects; set objects.prefixes for it too")
        reads = (self._read(message, place, claim, within) for place, claim in message.claims)
        found = await asyncio.gather(*reads, return_exceptions=True)
        failed = [one for one in found if isinstance(one, BaseException)]
        tensors = list(message.tensors)
        for one, (place, claim) in zip(found, message.claims, strict=True):
            if isinstance(one, Tensor):
                tensors[place] = one
                if failed:
                    self._store.release(claim.bytes)
        if failed:
            raise failed[0]
        return tuple(tensors)

    def release(self, message: codec.WorkMessage) -> None:
        """What was fetched for it is needed no longer."""
        if self._store is not None:
            for _, claim in message.claims:
                self._store.release(claim.bytes)

    async def kept(self, app: str, outputs: Sequence[Tensor]) -> Mapping[str, Claim]:
        """Keep the large ones of ``outputs``; where, by name. Raises ObjectError."""
        assert self._store is not None  # asked only where it keeps results
        large = [output for output in outputs if len(output.data) > _INLINE]
        return {output.name: await self._store.write(app, output.data) for output in large}

    async def _read(self, message: codec.WorkMessage, place: int, claim: Claim, within: float) -> Tensor:
        assert self._store is not None  # looked at before
        try:
            async with asyncio.timeout(within if within > 0.0 else None):
                data = await self._store.read(claim, within=within)
        except TimeoutError:
            told = "was not here before the query's deadline: the store is slow, or objects.held_bytes too little"
            raise ObjectError(f"{claim.ref:.200} {told}") from None
        tensor = replace(message.tensors[place], data=data)
        try:
            codec.check_data(f"inputs.{tensor.name}", tensor, self._store.rules.max_element_bytes)
        except InvalidInputError as error:
            self._store.release(claim.bytes)
            raise ObjectError(f"{claim.ref:.200}: {error}") from error
        return tensor
