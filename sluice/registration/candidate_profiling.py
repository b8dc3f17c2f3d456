"""Profiling the candidates of a registration on one kind of device after the other.

Rules. All that can be loaded on a device are measured interleaved. A candidate that cannot, or fails while it is
measured, is not served there, with the reason; a registered model must be. Samples are kept as they come, and the same
request goes on from there.
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from sluicegate.domain.errors import LoadError
from sluicegate.domain.executor import Executor
from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import Tensor
from sluicegate.executors.onnx.runtime_options import Runtime
from sluicegate.executors.profile_runner import (
    MeasurementError,
    ProfileOptions,
    Progress,
    longest_of,
    profile_variants,
    start_warm,
)
from sluicegate.profiles.catalogue.profiler import Effort, shorter_lengths
from sluicegate.sluice.registration.registration_candidates import Made
from sluicegate.sluice.registration.registration_journal import KeptSweep


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateProfiling:
    """How candidates of ``app`` are measured: queries of one row, ``rows``, in batches of these sizes.

    ``journal``: folder that samples are kept in.
    """

    app: App
    rows: Sequence[tuple[Tensor, ...]]
    batches: tuple[int, ...]
    effort: Effort
    seed: int
    journal: Path
    make_executor: Callable[[Runtime], Executor]
    progress: Progress

    async def on(self, target: str, runtime: Runtime, candidates: Sequence[Made], needed: AbstractSet[str]) -> None:
        """Measure on device type ``target``. Raises LoadError where a variant that is ``needed`` cannot be loaded,
        MeasurementError where it fails."""
        executor = self.make_executor(runtime)
        try:
            await self._load(executor, target, candidates, needed)
            while True:
                left = {c.variant.name: c for c in candidates if target not in c.unloaded}
                try:
                    await self._measure(executor, target, [*left.values()], counts=runtime.provider == "cpu")
                    return
                except MeasurementError as error:
                    if error.variant in needed:
                        raise
                    left[error.variant].unloaded[target] = f"fails while it is measured on {target}: {error!s:.200}"
                    if error.fatal:
                        await start_warm(executor, candidates[0].variant)
        finally:
            await executor.close()

    async def _load(
        self, executor: Executor, target: str, candidates: Sequence[Made], needed: AbstractSet[str]
    ) -> None:
        ended: list[None] = []
        executor.watch(lambda: ended.append(None))
        await start_warm(executor, candidates[0].variant)
        for candidate in candidates:
            name = candidate.variant.name
            self.progress(f"load {name} on {target}", 0.0)
            try:
                await executor.load(candidate.variant, max_batch=max(self.batches))
            except LoadError as error:
                if name in needed:
                    raise
                candidate.unloaded[target] = f"cannot be loaded on {target}: {error!s:.200}"
                if ended:  # it took the process with it
                    ended.clear()
                    await start_warm(executor, candidates[0].variant)

    async def _measure(self, executor: Executor, target: str, candidates: Sequence[Made], *, counts: bool) -> None:
        lengths = {c.variant.name: shorter_lengths(longest_of(self.app)) for c in candidates}
        kept = self.journal / f"samples-{target}.jsonl"
        sweep = KeptSweep(kept, list(lengths), self.batches, self.effort, lengths=lengths)
        options = ProfileOptions(device_type=target, batches=self.batches, effort=self.effort, seed=self.seed)
        try:
            profiles = await profile_variants(
                executor,
                {self.app.name: self.app},
                [candidate.variant for candidate in candidates],
                options,
                self.progress,
                sweep=sweep,
                rows={self.app.name: self.rows},
            )
        finally:
            sweep.close()
        for candidate, profile in zip(candidates, profiles, strict=True):
            candidate.profiles[target] = profile
            candidate.measured(target, sweep, counts=counts)
