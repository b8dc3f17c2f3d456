"""A figure of a paper: what it is made with, what comes out, and its page, picture and raw numbers as files."""

import json
import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure as Drawing

from reproduce.drawing import png, svg
from sluicegate.domain.errors import ConfigurationError
from sluicegate.simulator.report.page import Figure, Table, page


@dataclass(frozen=True)
class TraceOptions:
    """What RAMSIS' figures show of their trace: see ``python -m reproduce --help``."""

    speed: int = 1
    phases: int = 1
    panel: str | None = None
    at: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Options:
    """What a figure is made with.

    ``seed``: the first; ``seeds``: how many, ``seconds``: of each run, None for the paper's own; ``quick``: fewer and
    shorter runs; ``processes``: at once, where a figure can use more than one.
    """

    seed: int = 0
    seeds: int | None = None
    seconds: float | None = None
    quick: bool = False
    processes: int = 1
    trace: TraceOptions = field(default_factory=TraceOptions)

    def lasting(self, quick_s: float) -> float | None:
        """Seconds of a run over a trace; None for all of it."""
        return self.seconds or (quick_s if self.quick else None)

    def each_seed(self, usual: int = 1) -> range:
        """The seeds, ``usual`` of them where not asked otherwise."""
        return range(self.seed, self.seed + (self.seeds or usual))


@dataclass(frozen=True)
class Result:
    """What was found. ``drawings``: (caption, plot), the first one is the picture; ``rows``: everything measured."""

    title: str
    intro: str
    drawings: Sequence[tuple[str, Drawing]]
    tables: Sequence[Table]
    notes: Sequence[str]
    rows: Any = ()


FigureMaker = Callable[[Options], Result]

ARTIFACTS = {"proteus": "github.com/UMass-LIDS/Proteus", "ramsis": "github.com/dmmendo/RAMSIS"}
"""Where the data of a paper comes from: what may not be passed on."""


def papers_data(part: str) -> Path:
    """A paper's data, or a file of it ("ramsis/FILE"). Raises ConfigurationError, with how to get it, if it is not
    there."""
    root = os.environ.get("SLUICE_DATA")
    if root and (found := Path(root) / part).exists():
        return found
    paper = part.split("/")[0]
    missing = f"{root} has no {part}" if root else "SLUICE_DATA is not set"
    raise ConfigurationError(
        f"{missing}; make a folder {paper} from {ARTIFACTS[paper]}, as docs/guide/scenarios.md says, and set"
        " SLUICE_DATA to the folder that it lies in"
    )


def write(name: str, result: Result, folder: Path, ran: Sequence[str]) -> Path:
    """The page, ``name``.png and ``name``.json in ``folder``; the page's path. ``ran``: how it was made."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / name
    day = time.strftime("%Y-%m-%d", time.gmtime())
    text = page(
        f"{name}: {result.title}",
        intro=result.intro,
        figures=[Figure(caption, svg(drawing)) for caption, drawing in result.drawings],
        tables=result.tables,
        notes=[*result.notes, "; ".join([*ran, platform.machine(), f"Python {platform.python_version()}", day])],
    )
    path = Path(f"{stem}.html")
    path.write_text(text)
    png(result.drawings[0][1], Path(f"{stem}.png"))
    Path(f"{stem}.json").write_text(json.dumps(_plain(result.rows), indent=1))
    return path


def _plain(value: Any) -> Any:
    """Without NaN, which JSON does not know."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value
