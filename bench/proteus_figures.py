"""The figures of Proteus (ASPLOS 2024) again, by number: one command and one page each, beside the paper's numbers.

    python bench/proteus_figures.py 4 --out reports/proteus
    python bench/proteus_figures.py all --quick

4 end to end, 5 bursts, 6 batching by arrival process, 7 ablation, 8 SLOs, 9 by family, 10 solver cost; loads: 4 again
with loads of 1, 5 and 15 s. Baselines at their papers' word and mended, side by side. Each writes figure-N.html, .png
and .json. Needs the papers' data: set SLUICE_DATA.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.proteus.ablation import figure_7
from bench.proteus.arrival_processes import figure_6
from bench.proteus.end_to_end import figure_4, figure_5, figure_9
from bench.proteus.load_times import figure_loads
from bench.proteus.pages import Options, Result, write
from bench.proteus.slos import figure_8
from bench.proteus.solver_cost import figure_10
from bench.proteus.workloads import data

FIGURES: Mapping[str, Callable[[Options], Result]] = {
    "4": figure_4,
    "5": figure_5,
    "6": figure_6,
    "7": figure_7,
    "8": figure_8,
    "9": figure_9,
    "10": figure_10,
    "loads": figure_loads,
}


def main() -> None:
    """Compute and write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", nargs="?", default="all", choices=[*FIGURES, "all"])
    parser.add_argument("--out", type=Path, default=Path("reports/proteus"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1, help="Fig. 4 and 5: how many, where arrivals depend on them")
    parser.add_argument("--seconds", type=float, help="length of each run over a trace; default: all of it")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs, a minute or two a figure")
    parser.add_argument("--literal-s", type=float, default=20.0, help="Fig. 10: when the per-device program is stopped")
    arguments = parser.parse_args()
    data()
    options = Options(
        out=arguments.out,
        seed=arguments.seed,
        seeds=max(1, arguments.seeds),
        seconds=arguments.seconds,
        quick=arguments.quick,
        literal_s=arguments.literal_s,
    )
    for number in FIGURES if arguments.figure == "all" else [arguments.figure]:
        started = time.process_time()
        print(f"figure {number}", flush=True)
        result = FIGURES[number](options)
        command = f"python bench/proteus_figures.py {number}" + (" --quick" if arguments.quick else "")
        if options.seeds > 1:
            command += f" --seeds {options.seeds}"
        if arguments.seconds:
            command += f" --seconds {arguments.seconds:g}"
        path = write(result, options, command, time.process_time() - started)
        print(f"figure {number}: {path}")
        for note in result.notes:
            print(f"  {note}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
