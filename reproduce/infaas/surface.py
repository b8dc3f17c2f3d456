"""Figure 5 over what the paper does not give, several constants at once: in which region ours violates less."""

from dataclasses import replace
from itertools import product

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Drawing

from reproduce.drawing import panels
from reproduce.figure import Options, Result
from reproduce.infaas import worlds
from reproduce.infaas.figures import CLIPPER, OURS, SM, means_of, played
from sluicegate.simulator.report.charts import STYLE
from sluicegate.simulator.report.page import Table

SHARING = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25)
GPUS = (12.0, 15.0, 18.0)
INFERENTIAS = (5.2, 8.0)
SEEDS = 1


def figure_5_surface(options: Options) -> Result:
    """Violations of the baselines over ours by what sharing a GPU costs, how fast GPUs and how fast Inferentia are."""
    known = replace(options, seeds=options.seeds or SEEDS)
    rows: list[dict[str, float]] = []
    for sharing, gpu, inferentia in product(SHARING, GPUS, INFERENTIAS):
        free = replace(worlds.USUAL, sharing_cost=sharing, gpu=gpu, inferentia=inferentia)
        means = {name: means_of(found) for name, found in played(known, free).items()}
        rows.append(
            {
                "sharing costs": sharing,
                "a GPU over a CPU": gpu,
                "Inferentia over a CPU": inferentia,
                "our violations": means[OURS]["violations"],
                CLIPPER: means[CLIPPER]["violations"] / means[OURS]["violations"],
                SM: means[SM]["violations"] / means[OURS]["violations"],
            }
        )
        print("  " + ", ".join(f"{k} {v:.3g}" for k, v in rows[-1].items()), flush=True)
    ahead = {s: sum(row[s] > 1.0 for row in rows) for s in (CLIPPER, SM)}
    cells = [[f"{value:.3g}" for value in row.values()] for row in rows]
    return Result(
        "Figure 5 over three constants that the paper does not give",
        "Synthetic profiles: the paper's were never published. Violations of the baselines over ours: above 1 ours has"
        f" fewer. Ahead of {CLIPPER} in {ahead[CLIPPER]} of {len(rows)} worlds, of {SM} in {ahead[SM]}.",
        [("violations of Clipper+ over ours; in the line they are equal", _drawing(rows))],
        [Table("numbers", list(rows[0]), cells)],
        [],
        rows,
    )


def _drawing(rows: list[dict[str, float]]) -> Drawing:
    """A panel for each speed of Inferentia: sharing to the right, the speed of GPUs upwards."""
    with mpl.rc_context(STYLE):
        made, axes = panels(1, len(INFERENTIAS), 8.6, 3.0)
        for axis, inferentia in zip(axes, INFERENTIAS, strict=True):
            found = np.array([r[CLIPPER] for r in rows if r["Inferentia over a CPU"] == inferentia])
            over = found.reshape(len(SHARING), len(GPUS)).T
            drawn = axis.pcolormesh(SHARING, GPUS, over, cmap="PuOr", vmin=0.5, vmax=3.0, shading="nearest")
            axis.contour(SHARING, GPUS, over, levels=[1.0], colors="black")
            for (i, gpu), (j, sharing) in product(enumerate(GPUS), enumerate(SHARING)):
                ink = "white" if over[i, j] > 2.4 or over[i, j] < 0.9 else "black"
                axis.text(sharing, gpu, f"{over[i, j]:.1f}", ha="center", va="center", fontsize=6.5, color=ink)
            axis.set(
                title=f"Inferentia {inferentia:g} times a CPU", xlabel="share of its rate that sharing a GPU costs"
            )
        axes[0].set(ylabel="a GPU over a CPU")
        made.colorbar(drawn, ax=list(axes), label="violations over ours")
        return made
