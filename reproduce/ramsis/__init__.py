"""RAMSIS (EuroSys 2024), means over ``--seeds`` draws of the arrivals, one where not asked otherwise.

5 trace, 6 constant load, 7 expected and simulated, 8 sixty variants, 10 slack grid, 11 batching, 12 three variants.
``--speed`` plays the trace that many times as fast: every load is seen, for a shorter time.
"""

from collections.abc import Mapping
from functools import partial

from reproduce.figure import FigureMaker
from reproduce.ramsis.figures import figure
from reproduce.ramsis.gains import PAPER

FIGURES: Mapping[str, FigureMaker] = {number: partial(figure, number) for number in PAPER}
