"""What the first load of a process takes for all of them is in no profile."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typing_extensions import override

from sluicegate.domain.errors import LoadError
from sluicegate.domain.executor import Loaded
from sluicegate.domain.models.variant import Variant
from sluicegate.executors import demo_catalogue
from sluicegate.executors.demo_catalogue import profile_in_child
from sluicegate.executors.emulated import EmulatedExecutor
from sluicegate.executors.onnx.runtime_options import Runtime
from sluicegate.executors.profile_runner import ProfileOptions
from sluicegate.profiles.catalogue.profiler import Effort
from sluicegate.sluice.registration.candidate_profiling import CandidateProfiling
from sluicegate.sluice.registration.registration_candidates import Made
from tests.models.executor_models import query, write_catalogue

pytestmark = pytest.mark.virtual

QUICK = Effort(least=2, enough=3)


class Cold(EmulatedExecutor):
    """Its first load takes 5 s more. ``refused``: what cannot be loaded, and takes the process with it."""

    refused = ""
    warm = False

    @override
    async def load(self, variant: Variant, *, max_batch: int, within: float | None = None) -> Loaded:
        if variant.name == self.refused:
            await self.close()
            self._on_end()
            raise LoadError(f"{variant.name}: its process is gone")
        loaded = await super().load(variant, max_batch=max_batch, within=within)
        if not self.warm:
            self.warm = True
            loaded = self._hosted[variant.name].loaded = replace(loaded, load_s=loaded.load_s + 5.0)
        return loaded

    @override
    async def close(self) -> None:
        self.warm = False
        await super().close()


async def test_of_variants_that_are_profiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = write_catalogue(tmp_path)
    monkeypatch.setattr(demo_catalogue, "OnnxExecutor", lambda *_: Cold(catalogue, "cpu"))
    variants = [catalogue.variants[name] for name in ("double", "triple")]
    options = ProfileOptions(batches=(1, 4), effort=QUICK)
    found = await profile_in_child(tmp_path, catalogue, variants, options)
    assert {p.variant: p.load for p in found} == {"double": pytest.approx(0.01), "triple": pytest.approx(0.01)}


async def test_of_candidates_whose_process_one_of_them_took_with_it(tmp_path: Path) -> None:
    catalogue = write_catalogue(tmp_path)
    executor = Cold(catalogue, "cpu")
    executor.refused = "triple"
    profiling = CandidateProfiling(
        app=catalogue.apps["affine"],
        rows=[query((i, 1)) for i in range(4)],
        batches=(1, 4),
        effort=QUICK,
        seed=5,
        journal=tmp_path,
        make_executor=lambda _: executor,
        progress=lambda what, done: None,
    )
    made = [Made(name, catalogue.variants[name], np.zeros(2), finite=True) for name in ("double", "triple", "raising")]
    await profiling.on("cpu", Runtime(), made, {"double"})
    assert {one.recipe: one.profiles["cpu"].load for one in made if one.profiles} == {
        "double": pytest.approx(0.01),
        "raising": pytest.approx(0.01),
    }
