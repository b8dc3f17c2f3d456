"""A family of one's own under a ramp to twice what its best model can: live, and simulated on the same arrivals.

    python bench/planning/own_family.py

In an empty home, with the commands of ``docs/guide/own-model.md``: the three models of ``examples/numpy_model.py`` are
registered, which takes their profiles here and now; ``sluice up`` serves them on one device; ``sluice replay`` sends a
ramp from a fifth of to twice the median capacity of the most accurate variant, and a plateau. The models are made heavy
before: hidden units repeated and the head divided by how often, the same answers for milliseconds.

Behind it the same arrivals are simulated with the profiles that were taken: all variants, the best alone, the fastest
alone; and all variants with what the host cost live beside the profiles, which no profile knows: how long a query was
under way outside queue and batch, and how much longer a batch took than profiled, in the mean.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import onnx
from onnx import numpy_helper

from sluicegate.planner.problems.throughput import throughput
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import load_catalogue
from sluicegate.simulator.arrivals.trace_fields import TraceSpec
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.scenario import build, scenario_of
from tests.harness import free_port

ROOT = Path(__file__).resolve().parents[2]
APP = "clouds"
SLUICE = (sys.executable, "-P", "-m", "sluicegate")
FOOT, TOP, RISE_S, PLATEAU_S = 0.2, 2.0, 45, 15
REPEATED = {"small": 20, "medium": 50, "large": 120}
"""How often each model's hidden units are there."""

Found = dict[str, Any]


class Place:
    """A reader's folder and environment, in which nothing was ever done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
        self.port = free_port()
        own = {"HOME": self.home, "HTTP__PORT": self.port, "WEB__PORT": 0, "DEVICES": '[{"name": "cpu0"}]'}
        self.environment = {**kept, **{f"SLUICE_{name}": str(value) for name, value in own.items()}}

    def run(self, *command: str) -> str:
        """What it prints. Raises CalledProcessError where it fails."""
        asked = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        if asked.returncode:
            raise SystemExit(f"{' '.join(command)}\n{asked.stdout}\n{asked.stderr}")
        return asked.stdout

    def serve(self) -> subprocess.Popen[bytes]:
        """``sluice up``, once it listens."""
        process = subprocess.Popen(
            [*SLUICE, "up"], cwd=self.folder, env=self.environment, stderr=(self.folder / "up.log").open("wb")
        )
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v2/health/ready", timeout=1.0):
                    return process
            except OSError:
                time.sleep(0.1)
        raise SystemExit(f"sluice up does not serve\n{(self.folder / 'up.log').read_text()}")


def live(place: Place, catalogue: Catalogue, trace: Path, rows: int, seed: int) -> Found:
    """What the replay met, by the outcomes."""
    process = place.serve()
    try:
        place.run(*SLUICE, "infer", "--app", APP, "--latency-ms", "60000")  # answered once the first plan holds
        asked = ["--app", APP, "--format", "counts", "--rows", str(rows), "--seed", str(seed), "--json"]
        sent = json.loads(place.run(*SLUICE, "replay", str(trace), *asked))
        time.sleep(2.0)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
    (run,) = (place.home / "runs").iterdir()
    told = [json.loads(line)["parameters"] for line in (run / "outcomes.jsonl").read_text().splitlines()]
    ended = [one for one in told if one["source"] == "/replay"]
    on_time = [one for one in ended if one["kind"] == "answered" and not one["late"]]
    log = (place.folder / "up.log").read_text().splitlines()
    return {
        "queries": len(ended),
        "behind_s": sent["behind_s"],
        "on_time": len(on_time) / len(ended),
        "accuracy": float(np.mean([one["accuracy"] for one in on_time])),
        "right_in_time": sum(one["accuracy"] for one in on_time) / len(ended),
        "variants": dict(Counter(one["variant"] for one in on_time)),
        "plans": len({tuple(one["epoch"]) for one in ended if one["epoch"]}),
        "hop_ms": 1e3
        * float(np.median([one["at"] - one["arrival"] - one["queue_s"] - one["batch_s"] for one in on_time])),
        "slower": slower(on_time, catalogue),
        "warned": [line for line in log if "WARNING" in line],
    }


def slower(answered: Sequence[Found], catalogue: Catalogue) -> float:
    """How much longer batches took than profiled, in the mean over batches."""
    batches = {(one["variant"], one["batch_size"], one["execution_s"]) for one in answered}
    expected = [catalogue.profiles[name, "cpu"].curve("median")(rows) for name, rows, _ in batches]
    return float(sum(took for _, _, took in batches) / sum(expected))


def simulated(
    place: Place, trace: Path, rows: int, seed: int, variants: Sequence[str], costs: Mapping[str, Any] | None = None
) -> Found:
    """The same arrivals, on the profiles that were taken. ``costs``: of the host, in the scenario's terms."""
    document = {
        "name": "ramp",
        "duration_s": RISE_S + PLATEAU_S,
        "apps": {APP: {"variants": list(variants), "queries": [{"share": 1.0, "rows": rows}]}},
        "catalogue": {"format": "sluice", "path": str(place.home / "registered")},
        "devices": [{"name": "cpu0", "type": "cpu"}],
        "traces": {"format": "generator", "qps": (1.0, 1.0)},  # in whose place those of the trace are put
        "simulation": dict(costs or {}),
    }
    arrivals = TraceSpec(format="counts", path=trace).open([APP], np.random.default_rng(seed), None)
    system = build(scenario_of(document), time.perf_counter)
    found = Engine(system, np.random.default_rng(seed)).run(arrivals).summary
    return {
        "queries": found.queries,
        "on_time": found.slo_attainment,
        "accuracy": found.effective_accuracy,
        "right_in_time": found.right_in_time,
        "variants": {name: n for mix in found.variants_used.values() for name, n in dict(mix).items()},
    }


def heavier(folder: Path, times: Mapping[str, int]) -> list[str]:
    """The models in ``folder`` with their hidden units repeated, in their place."""
    for name, often in times.items():
        model = onnx.load(folder / f"{name}.onnx")
        for weights in model.graph.initializer:
            held = numpy_helper.to_array(weights)
            repeats = {"filters": (1, often), "biases": (often,), "head": (often, 1)}[weights.name]
            repeated = np.tile(held, repeats) / np.float32(often if weights.name == "head" else 1)
            weights.CopyFrom(numpy_helper.from_array(repeated, weights.name))
        onnx.save(model, folder / f"{name}.onnx")
    return [str(folder / f"{name}.onnx") for name in times]


def ramp(best: float, file: Path) -> None:
    """Queries of each second, from FOOT to TOP times ``best``."""
    rates = [best * (FOOT + (TOP - FOOT) * min(1.0, second / RISE_S)) for second in range(RISE_S + PLATEAU_S)]
    file.write_text("".join(f"{rate:.0f}\n" for rate in rates))


def measured(place: Place, rows: int, seed: int) -> dict[str, Any]:
    """Register, serve, replay, simulate."""
    place.run(sys.executable, str(ROOT / "examples" / "numpy_model.py"), "models")
    models = heavier(place.folder / "models", REPEATED)
    place.run(*SLUICE, "register", "--app", APP, *models, "--validation", "models/rows.npz")
    catalogue = load_catalogue(place.home / "registered", verify=False)
    rates = capacities(catalogue, rows)
    best = max(rates, key=lambda name: catalogue.variants[name].accuracy)
    trace = place.folder / "trace.csv"
    ramp(rates[best], trace)
    found: dict[str, Found] = {"live": live(place, catalogue, trace, rows, seed)}
    ways = {
        "all variants": list(rates),
        "the best alone": [best],
        "the fastest alone": [max(rates, key=rates.__getitem__)],
    }
    found |= {f"{name}, simulated": simulated(place, trace, rows, seed, names) for name, names in ways.items()}
    cost = {
        "to_device_ms": found["live"]["hop_ms"],
        "stragglers": [{"device": "*", "factor": found["live"]["slower"]}],
    }
    found["all variants and the host, simulated"] = simulated(place, trace, rows, seed, list(rates), cost)
    served = {
        name: {"accuracy": catalogue.variants[name].accuracy, "queries_per_s": rate} for name, rate in rates.items()
    }
    return {"served": served, "top_qps": TOP * rates[best], "found": found}


def capacities(catalogue: Catalogue, rows: int) -> dict[str, float]:
    """Queries/s of each variant that is served, at the median."""
    slo = catalogue.apps[APP].slo
    return {
        name: throughput(profile, 0.5 * slo, rows=rows).qps / rows
        for (name, kind), profile in sorted(catalogue.profiles.items())
        if kind == "cpu" and catalogue.variants[name].app == APP
    }


def table(found: Mapping[str, Found]) -> str:
    """The measures, side by side."""
    lines = [f"{'':37} {'queries':>8} {'on time':>8} {'accuracy':>9} {'right in time':>14}"]
    for name, one in found.items():
        share = [f"{one[measure]:.2%}" for measure in ("on_time", "accuracy", "right_in_time")]
        lines.append(f"{name:37} {one['queries']:8,} {share[0]:>8} {share[1]:>9} {share[2]:>14}")
    return "\n".join(lines)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16, help="of a query (default 16)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-family-") as folder:
        told = measured(Place(Path(folder)), chosen.rows, chosen.seed)
    if chosen.json:
        print(json.dumps(told, indent=1))
        return 0
    for name, one in told["served"].items():
        print(f"{name}: accuracy {one['accuracy']:.1%}, {one['queries_per_s']:.0f} queries/s")
    print(f"ramp to {told['top_qps']:.0f} queries/s of {chosen.rows} rows\n\n{table(told['found'])}")
    print(*(f"{name}: {one['variants']}" for name, one in told["found"].items()), sep="\n")
    ran = told["found"]["live"]
    print(
        f"live: {ran['hop_ms']:.1f} ms outside queue and batch, batches {ran['slower']:.2f} times as long as profiled"
    )
    print(*ran["warned"], sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
