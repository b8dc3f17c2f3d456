"""A selection table as a picture: queue length across slack, one colour a variant, in the terminal and as PNG.

Codes are read without matplotlib, which only pictures need.
"""

import io

import numpy as np
from numpy.typing import NDArray
from rich.style import Style
from rich.text import Text

from sluicegate.domain.table import DROP, SelectionTable

_SIGNS = "0123456789abcdefghijklmnopqrstuvwxyz"
_DROP_COLOUR = (0.2, 0.2, 0.2)


def actions(table: SelectionTable, phase: int = 0) -> NDArray[np.uint8]:
    """(N, J): the code of each state, in one phase."""
    flat = np.frombuffer(table.actions, dtype=np.uint8)
    codes: NDArray[np.uint8] = flat.reshape(-1, table.phases, len(table.slacks))[:, phase, :]
    return codes


def png(table: SelectionTable) -> bytes:
    """The picture: slack in milliseconds to the right, queries queued upwards, as far as it makes a difference."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    codes = actions(table)
    used = sorted(set(codes.ravel().tolist()))
    index = np.searchsorted(used, codes)
    figure = Figure(figsize=(8.0, 4.2), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    colours = [_colour(code, len(table.variants)) for code in used]
    edges = np.append(1e3 * np.asarray(table.slacks), 1e3 * (2 * table.slacks[-1] - table.slacks[-2]))
    mesh = axes.pcolormesh(
        edges, np.arange(codes.shape[0] + 1) + 0.5, index, cmap=ListedColormap(colours), vmin=-0.5, vmax=len(used) - 0.5
    )
    bar = figure.colorbar(mesh, ax=axes, ticks=range(len(used)))
    bar.ax.set_yticklabels([_name(table, code) for code in used])
    axes.set(xlabel="slack of the head, ms", ylabel="queries queued", title=title(table))
    differ = np.flatnonzero((codes != codes[-1]).any(axis=1))
    axes.set_ylim(0.5, min(codes.shape[0], int(differ.max(initial=0)) + 4) + 0.5)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def terminal(table: SelectionTable, width: int) -> Text:
    """Rows: queries queued, the longest on top; one sign a slack bin, as many bins as fit ``width`` columns.

    Lengths that are served alike at every slack share a row.
    """
    codes = actions(table)
    columns = np.unique(np.linspace(0, codes.shape[1] - 1, max(2, min(codes.shape[1], width - 9))).round().astype(int))
    text = Text()
    n = codes.shape[0]
    while n:
        longest = n
        while n > 1 and (codes[n - 2] == codes[longest - 1]).all():
            n -= 1
        text.append((f"{n}-{longest}" if n < longest else f"{n}").rjust(7) + " ")
        for j in columns:
            code = int(codes[n - 1, j])
            r, g, b = (int(255 * c) for c in _colour(code, len(table.variants)))
            ink = "black" if r + g + b > 380 else "white"
            text.append(_sign(code), Style(color=ink, bgcolor=f"rgb({r},{g},{b})"))
        text.append("\n")
        n -= 1
    right = f"{1e3 * table.slacks[-1]:g} ms slack"
    text.append(" " * 8 + "0" + right.rjust(len(columns) - 1) + "\n")
    for code in sorted(set(codes.ravel().tolist())):
        text.append(f"        {_sign(code)} {_name(table, code)}\n")
    return text


def title(table: SelectionTable) -> str:
    """One line: what it is for."""
    name = f"{table.app}, " if table.app else ""
    return f"{name}{1e3 * table.slo:g} ms, {table.workers} workers, {table.qps:g} queries/s"


def _name(table: SelectionTable, code: int) -> str:
    return "drop the head" if code == DROP else table.variants[code]


def _sign(code: int) -> str:
    return "." if code == DROP else _SIGNS[code % len(_SIGNS)]


def _colour(code: int, variants: int) -> tuple[float, float, float]:
    """Pale for the fastest, dark for the most accurate."""
    if code == DROP:
        return _DROP_COLOUR
    from matplotlib import colormaps

    r, g, b, _ = colormaps["viridis"](1.0 - code / max(variants - 1, 1))
    return float(r), float(g), float(b)
