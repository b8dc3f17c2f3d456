"""Proteus (ASPLOS 2024), baselines exactly as published and mended, side by side.

4 end to end, 5 bursts, 6 batching by arrival process, 7 ablation, 8 SLOs, 9 by family, 10 solver cost; loads: 4 again
with loads of 0.2 to 60 s; bound: the distance to the clairvoyant bound on every trace.
"""

from collections.abc import Mapping

from reproduce.figure import FigureMaker
from reproduce.proteus.ablation import figure_7
from reproduce.proteus.arrival_processes import figure_6
from reproduce.proteus.distance import figure_bound
from reproduce.proteus.end_to_end import figure_4, figure_5, figure_9
from reproduce.proteus.load_times import figure_loads
from reproduce.proteus.slos import figure_8
from reproduce.proteus.solver_cost import figure_10

FIGURES: Mapping[str, FigureMaker] = {
    "4": figure_4,
    "5": figure_5,
    "6": figure_6,
    "7": figure_7,
    "8": figure_8,
    "9": figure_9,
    "10": figure_10,
    "loads": figure_loads,
    "bound": figure_bound,
}
