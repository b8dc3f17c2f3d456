"""The figures and tables of PROTEAN by number: what is run, drawn, and put beside the paper's numbers."""

from collections.abc import Callable, Mapping

from bench.protean.capacity import cost, twitter
from bench.protean.pages import Result
from bench.protean.runs import Options
from bench.protean.varied import all_best_effort, all_strict, counts, gpt, gpulet, language, oracle, shares, tight
from bench.protean.vision import breakdown, compliance, distribution, motivation, reconfiguration, throughput

FIGURES: Mapping[str, Callable[[Options], Result]] = {
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
}
"""By number."""
