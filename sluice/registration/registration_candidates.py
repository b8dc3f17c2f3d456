"""Candidates of a registration: what is known of each, where they are profiled, how they are recorded."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.executors.devices.gpu_library import DeviceError
from sluicegate.executors.devices.nvml import PynvmlLibrary
from sluicegate.executors.onnx.runtime_options import PROVIDERS, Runtime
from sluicegate.profiles.catalogue.profiler import Sample, Spread, Sweep
from sluicegate.profiles.catalogue.registered_apps import CandidateDocument
from sluicegate.profiles.formats.catalogue_json import app_document, profile_to_document, variant_to_document
from sluicegate.profiles.registration import task_metrics
from sluicegate.profiles.registration.validation_set import Array
from sluicegate.sluice.settings.gpu_settings import CudaSettings

_UNSCORED = task_metrics.Score(0.0, 0.0)


@dataclass(slots=True)
class Made:
    """One that was made: its answers on the scored rows, its scores; by device type its profiles, what they rest on,
    and where it has none, why (``unloaded``).

    ``recipe``: with the label of its model before it, where there are several. ``model``: that label.
    """

    recipe: str
    variant: Variant
    answers: Array
    finite: bool
    model: str = ""
    score: task_metrics.Score = _UNSCORED
    gap: task_metrics.Score = _UNSCORED
    profiles: dict[str, Profile] = field(default_factory=dict)
    spreads: dict[str, dict[int, Spread]] = field(default_factory=dict)
    rounds: dict[str, dict[int, tuple[Sample, ...]]] = field(default_factory=dict)
    unloaded: dict[str, str] = field(default_factory=dict)

    def measured(self, target: str, sweep: Sweep, *, counts: bool) -> None:
        """Keep what ``sweep`` measured on ``target``. ``counts``: processor time says what a batch takes there."""
        self.spreads[target] = sweep.spreads(self.variant.name)
        self.rounds[target] = {
            b: samples if counts else tuple(Sample(s.wall, s.wall) for s in samples)
            for b, samples in sweep.rounds(self.variant.name).items()
        }


def targets(threads: tuple[int, ...]) -> list[tuple[str, Runtime]]:
    """Device types to profile for: CPU workers of so many threads, and CUDA where ONNX Runtime has it and a GPU is
    there. Raises ConfigurationError where that is none.
    """
    import onnxruntime as ort

    found = [("cpu" if n == 1 else f"cpu{n}", Runtime(threads=n)) for n in sorted(set(threads))]
    if PROVIDERS["cuda"] in ort.get_available_providers() and _gpus():
        found.append(("cuda", CudaSettings().runtime({})))
    if not found:
        raise ConfigurationError(
            "no CUDA device is here to profile on; leave out --threads none, or see `sluice doctor`"
        )
    return found


def _gpus() -> int:
    try:
        return PynvmlLibrary().count()
    except DeviceError:
        return 0


def servable(app: App) -> App:
    """``app``. Raises InvalidInputError where its tensors are more, or larger, or named longer than can be served."""
    try:
        app_document(app)
    except InvalidInputError as error:
        raise InvalidInputError("model", f"cannot be served: {error!s:.300}") from error
    return app


def document_of(candidate: Made, by_target: Mapping[str, Mapping[str, str]]) -> CandidateDocument:
    """For the record. ``by_target``: device type -> variant -> why it is not served there, or ""."""
    name = candidate.variant.name
    reasons = {target: verdict[name] for target, verdict in by_target.items()}
    served = any(not why for why in reasons.values())
    first = next(iter(reasons.values()))
    document = orjson.dumps(
        {
            "variant": variant_to_document(candidate.variant),
            "recipe": candidate.recipe,
            "gap": candidate.gap.value,
            "gap_se": candidate.gap.se,
            "finite": candidate.finite,
            "served": served,
            "reason": "" if served else first,
            "profiles": [profile_to_document(p) for p in candidate.profiles.values()],
            "spreads": {
                target: [
                    {"batch": b, "median_s": s.middle, "low_s": s.low, "high_s": s.high, "samples": s.samples}
                    for b, s in sorted(spreads.items())
                ]
                for target, spreads in candidate.spreads.items()
            },
        }
    )
    return CandidateDocument.model_validate_json(document)
