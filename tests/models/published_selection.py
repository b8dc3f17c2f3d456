"""What RAMSIS publishes of image classification within 150 ms on 60 workers, as facts: so that nobody needs its data.

Source: Mendoza, Romero, Trippel, "Model Selection for Latency-Critical Inference Serving", EuroSys 2024, and its
artifact (github.com/dmmendo/RAMSIS at 9b74967). Latencies are the 95th percentiles that can be within 150 ms, rounded
to 0.1 ms; accuracies are top-1 on ImageNet. Longer batches are reckoned by the line through the first and the last:
they are late whatever they take. Expected and chosen are what the artifact computes from all its measurements.
"""

from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.formats.ramsis_json import DEVICE_TYPE

SLO = 0.15
LARGEST = 32

MEASURED: dict[str, tuple[float, tuple[float, ...]]] = {
    "shufflenet_v2_x0_5": (57.972, (21.9, 38.6, 56.6, 69.2, 82.1, 97.2, 113.9, 126.3, 141.7)),
    "mobilenet_v3_large": (73.004, (31.5, 46.9, 63.9, 79.6, 97.4, 115.1, 132.6, 149.4)),
    "efficientnet_b0": (77.692, (54.1, 80.9, 141.2, 148.6)),
    "efficientnet_b2": (80.608, (68.3, 102.6)),
    "efficientnet_b3": (82.008, (81.3, 128.3)),
    "efficientnet_b4": (83.384, (105.9,)),
    "efficientnet_v2_s": (84.228, (117.2,)),
}
"""By variant: percent of answers that are right, milliseconds of batches of 1, 2, ..."""

EXPECTED = {
    (1, 1.0): (0.837302, 1.498e-3),
    (60, 400.0): (0.842279, 0.0),
    (60, 2000.0): (0.748748, 1.888e-3),
    (60, 3200.0): (0.639322, 8.003e-3),
}
"""By (workers, queries/s): accuracy and violations that its policy expects."""

SWITCHED = {400.0: 0.84228, 600.0: 0.82008, 800.0: 0.80608, 1000.0: 0.77692, 2000.0: 0.73004, 3000.0: 0.57972}
"""By queries/s at 60 workers: accuracy of the variant that its authors let model switching take."""


def catalogue() -> Catalogue:
    """App "image" on the paper's workers."""
    profiles = []
    for name, (_, measured) in MEASURED.items():
        step = (measured[-1] - measured[0]) / (len(measured) - 1) if len(measured) > 1 else measured[0]
        beyond = [measured[-1] + step * more for more in range(1, LARGEST - len(measured) + 1)]
        points = tuple(BatchLatency(b, ms / 1e3, ms / 1e3) for b, ms in enumerate([*measured, *beyond], 1))
        profiles.append(Profile(variant=name, device_type=DEVICE_TYPE, points=points))
    variants = [Variant(name=name, app="image", accuracy=percent / 100) for name, (percent, _) in MEASURED.items()]
    return Catalogue.of([App(name="image", slo=SLO)], variants, profiles)
