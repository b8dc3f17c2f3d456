"""A figure of a paper again: a page (HTML: plots, tables, the paper's numbers beside ours), a picture, the raw numbers.

    python -m reproduce proteus-4                      reports/reproduce/proteus-4.html, .png and .json
    python -m reproduce protean-5 protean-t4 --seeds 5 --seconds 240
    python -m reproduce ramsis-5 --panel "image, 150" --at 60,70,80 --phases 4
    python -m reproduce infaas                         all figures of a paper; "all": of every paper
    make reproduce FIGURE=proteus-4 ARGS=--quick

Seeds and seconds have a default of each paper's own. Proteus, RAMSIS and INFaaS' 5 and 7 need the papers' data: set
SLUICE_DATA (docs/guide/scenarios.md); the others are made without. What the figures are is in the docstrings of
reproduce/PAPER/__init__.py; their numbers, discussed, in docs/reference.
"""

import argparse
import os
import resource
import shlex
import sys
from functools import partial
from math import inf, nan
from pathlib import Path

from reproduce import infaas, protean, proteus, ramsis, spread_drop
from reproduce.figure import Options, TraceOptions, write
from reproduce.protean.tables import vision
from sluicegate.domain.errors import SluiceError

PAPERS = {
    "proteus": proteus.FIGURES,
    "protean": protean.FIGURES,
    "spread-drop": spread_drop.FIGURES,
    "infaas": infaas.FIGURES,
    "ramsis": ramsis.FIGURES,
}
ALL = {f"{paper}-{number}": figure for paper, figures in PAPERS.items() for number, figure in figures.items()}

_WITHOUT_EFFECT = {
    "proteus-5": ("seconds",),
    **dict.fromkeys(("proteus-7", "proteus-8", "proteus-9", "proteus-loads", "protean-7", "infaas-6"), ("seeds",)),
    "proteus-10": ("seed", "seeds", "seconds"),
    "protean-2": ("seed", "seeds", "seconds", "quick"),
    **dict.fromkeys(("spread-drop-3", "spread-drop-proteus-6"), ("seconds",)),
    **dict.fromkeys(("spread-drop-4", "spread-drop-5"), ("seed", "seeds", "seconds")),
}
"""By figure, options of all papers that change nothing of it."""
_PRINTED = 40
"""Rows of a table; the page has all."""


def main() -> int:
    """Compute the figures asked for and write them. 2 where something that one needs is not there, or is wrong: the
    others are made all the same."""
    parser = argparse.ArgumentParser(
        prog="python -m reproduce", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figures", nargs="+", metavar="FIGURE", help=f"all, {', '.join(PAPERS)}; {', '.join(ALL)}")
    parser.add_argument("--seed", type=partial(_whole, least=0), default=0, help="the first")
    parser.add_argument("--seeds", type=_whole, help="how many, where arrivals are drawn")
    parser.add_argument(
        "--seconds", type=_seconds, help="length of each run, 1 at least; default: all of a trace, or the paper's own"
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs, a minute or two a figure")
    parser.add_argument("--processes", type=_whole, default=os.cpu_count() or 1, help="RAMSIS: at once")
    parser.add_argument("--speed", type=_whole, default=1, help="RAMSIS 5: plays the trace so many times as fast")
    parser.add_argument("--phases", type=_whole, default=1, help="RAMSIS 5: groups of turns that tables tell apart")
    parser.add_argument("--panel", help='RAMSIS: only this one, as in "image, 150"')
    parser.add_argument("--at", type=_places, help="RAMSIS: only these places (x), as in 60,70")
    parser.add_argument("--out", type=Path, default=Path("reports/reproduce"))
    asked = parser.parse_args()
    options = Options(
        seed=asked.seed,
        seeds=asked.seeds,
        seconds=asked.seconds,
        quick=asked.quick,
        processes=asked.processes,
        trace=TraceOptions(asked.speed, asked.phases, asked.panel, asked.at),
    )
    chosen = [name for one in asked.figures for name in ALL if one in ("all", name, *_papers_of(name))]
    if unknown := [one for one in asked.figures if one != "all" and one not in ALL and one not in PAPERS]:
        parser.error(f"no figure {', '.join(unknown)}; there are {', '.join(ALL)}")
    code = 0
    for name in dict.fromkeys(chosen):
        print(name, flush=True)
        without = [f"--{option}" for option, _ in _given(parser, asked) if not _heeds(name, option)]
        if without:
            print(f"{name}: without effect here: {', '.join(without)}", flush=True)
        before, known = cpu_s(), vision.cache_info().hits
        try:
            result = ALL[name](options)
        except SluiceError as error:
            print(f"{name}: {error}", file=sys.stderr)
            code = 2
            continue
        ran = [_command(parser, asked, name), f"{cpu_s() - before:.0f} CPU s"]
        if vision.cache_info().hits > known:
            ran.append("without runs that figures made before it had too")
        path = write(name, result, asked.out, ran)
        print(f"{name}: {path}", flush=True)
        for table in result.tables:
            print(f"  {table.title}")
            for row in (table.header, *table.rows[:_PRINTED]):
                print("    " + "  ".join(f"{cell:>12}" for cell in row))
        for note in result.notes:
            print(f"  {note}")
    return code


def _papers_of(figure: str) -> list[str]:
    return [paper for paper in PAPERS if figure.startswith(f"{paper}-")]


def _whole(text: str, least: int = 1) -> int:
    """A whole number, ``least`` or more."""
    if not text.removeprefix("-").isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"must be a whole number, {least} or more, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    """A length of runs."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = nan
    if not 1.0 <= seconds < inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, 1 or more, not {text!r}")
    return seconds


def _places(text: str) -> tuple[float, ...]:
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers with commas between them, not {text!r}") from None


def cpu_s() -> float:
    """CPU seconds that this process and those it has waited for have taken."""
    taken = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in taken)


def _command(parser: argparse.ArgumentParser, asked: argparse.Namespace, name: str) -> str:
    """The command that makes ``name`` alone, with those options of this one that have an effect on it."""
    words = ["python", "-m", "reproduce", name]
    for option, value in _given(parser, asked):
        if _heeds(name, option):
            words += [f"--{option}"] if value is True else [f"--{option}", _written(value)]
    return shlex.join(words)


def _given(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> list[tuple[str, object]]:
    """Options that are not left as they are."""
    return [(o, v) for o, v in vars(asked).items() if o != "figures" and v != parser.get_default(o)]


def _heeds(name: str, option: str) -> bool:
    """Whether an option has an effect on a figure."""
    if option in ("processes", "panel", "at"):
        return name.startswith("ramsis-")
    if option in ("speed", "phases"):
        return name == "ramsis-5"
    return option not in _WITHOUT_EFFECT.get(name, ())


def _written(value: object) -> str:
    """An option's value as it is read."""
    match value:
        case tuple():
            return ",".join(map(_written, value))
        case float():
            return f"{value:.12g}"
        case _:
            return str(value)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    raise SystemExit(main())
