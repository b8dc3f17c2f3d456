"""INFaaS (ATC 2021), on synthetic profiles.

5 twenty-two architectures under the Twitter trace, 5-free the same by constants that the paper does not give, one at a
time, 5-surface three of them at once, 6 what one kind of hardware alone costs, 7 two models that share a GPU.

Baselines as the paper describes them, on the same executors: Clipper+ holds fixed instances, chosen for the most
answers on the given workers at the peak of the trace; SM+ replicates one variant an app as its load goes. Both give out
whole GPUs. The paper's profiles were never published: these are synthetic. 5 and 7 play the shape of a Twitter trace
and need the papers' data: set SLUICE_DATA. ``--seconds`` plays the whole shape in so many.
"""

from collections.abc import Mapping

from reproduce.figure import FigureMaker
from reproduce.infaas.figures import figure_5, figure_5_free, figure_6, figure_7
from reproduce.infaas.surface import figure_5_surface

FIGURES: Mapping[str, FigureMaker] = {
    "5": figure_5,
    "5-free": figure_5_free,
    "5-surface": figure_5_surface,
    "6": figure_6,
    "7": figure_7,
}
