"""PROTEAN (Middleware 2024), on synthetic models; two runs of 90 s a system where not asked otherwise. Needs no data.

2 motivation, 5 compliance, 6 parts of the P99, 7 geometry over time,
8 distribution, 9 spot, 10 throughput and use, 11 Twitter, 12 and 13 language models, 14 shares of strict queries, 15 a
tighter SLO, 16 GPUlet, 17 Oracle and whose share of the gain is what, t4 all strict, t5 all best effort; not in the
paper: gpus 7 to 11 of them, bursts other ones, fewest how many it takes. The paper gives no table of times, memory,
bandwidth or slowdowns; what it says of them holds.
"""

from collections.abc import Mapping

from reproduce.figure import FigureMaker
from reproduce.protean.capacity import cost, twitter
from reproduce.protean.fewest import fewest
from reproduce.protean.varied import (
    all_best_effort,
    all_strict,
    bursts,
    counts,
    gpt,
    gpulet,
    language,
    oracle,
    shares,
    tight,
)
from reproduce.protean.vision import breakdown, compliance, distribution, motivation, reconfiguration, throughput

FIGURES: Mapping[str, FigureMaker] = {
    "2": motivation,
    "5": compliance,
    "6": breakdown,
    "7": reconfiguration,
    "8": distribution,
    "9": cost,
    "10": throughput,
    "11": twitter,
    "12": language,
    "13": gpt,
    "14": shares,
    "15": tight,
    "16": gpulet,
    "17": oracle,
    "t4": all_strict,
    "t5": all_best_effort,
    "gpus": counts,
    "bursts": bursts,
    "fewest": fewest,
}
