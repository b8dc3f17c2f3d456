"""The spread-drop paper, which leaves B, P and the SLO open: B = 8 and SLO = 2 P reproduce its figures.

3 longest runs of misses under Poisson arrivals, 4 under fixed intervals, 5 worst misses in ten; spread-drop-proteus-6
is figure 6 of Proteus on one device: why its factors depend on what is counted (proteus-6 has its plan and cluster).
Needs no data.
"""

from collections.abc import Mapping

from reproduce.figure import FigureMaker
from reproduce.spread_drop.figures import figure_3, figure_4, figure_5, figure_6

FIGURES: Mapping[str, FigureMaker] = {"3": figure_3, "4": figure_4, "5": figure_5, "proteus-6": figure_6}
