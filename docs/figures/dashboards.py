"""Pictures of Grafana's dashboards, and proof that their expressions say something: a system on Apache Kafka under a
burst, each stage a process of its own, scraped by Prometheus.

Each panel's own expression is evaluated by Prometheus over the run and drawn here. Exit 1 where a panel that must say
something is empty. Run from the root of a checkout with the development extras, Kafka's jars and `prometheus` on the
PATH: `python docs/figures/dashboards.py [seconds]`.
"""

import argparse
import asyncio
import json
import re
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import matplotlib as mpl
import yaml

mpl.use("Agg")
import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.pipeline import kafka_at
from docs.figures.shoot import CARE, qps
from sluicegate.domain.models.tensor import Tensor
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.sluice.settings.settings import DeviceSettings, PromiseSettings, Settings
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.streams import connect
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics
from tests.harness import PIXELS, free_port, toy_catalogue

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DEVICES = ("edge-0", "edge-1")
QUIET = {"Sent again", "Dead letters", "Safe mode"}
"""Panels that say nothing while nothing is wrong."""


@asynccontextmanager
async def processes(folder: Path, url: str) -> AsyncIterator[dict[str, int]]:
    """The stages, a process each; name -> port of its metrics."""
    settings = Settings(
        broker=url,
        prefix="boards",
        home=folder / "home",
        runs=folder / "runs",
        catalogue=folder / "catalogue",
        devices=tuple(DeviceSettings(name=name) for name in DEVICES),
        worker={"executor": "emulated", "batching": "adaptive"},
        planner={"period_s": 5.0},
        promises={CARE: PromiseSettings(max_consecutive=2, weakly_hard=((4, 10),))},
    )
    save_catalogue(folder / "catalogue", toy_catalogue(apps=("vision", CARE), slo=0.15), {})
    file = folder / "settings.yaml"
    file.write_text(json.dumps(settings.model_dump(mode="json", exclude={"http"})))
    roles = [("planner",), ("admission",), ("router",), ("sink",), *(("worker", "--device", name) for name in DEVICES)]
    running, ports = [], {}
    for role in roles:
        ports[role[-1]] = port = free_port()
        environment = {"SLUICE_METRICS__PORT": str(port), "PATH": "/usr/bin:/bin"}
        command = (sys.executable, "-m", "sluicegate.sluice.main", "up", *role, "--settings", str(file))
        running.append(await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment))
    try:
        yield ports
    finally:
        for process in running:
            process.terminate()
        await asyncio.gather(*(process.wait() for process in running))


@asynccontextmanager
async def prometheus(folder: Path, ports: Mapping[str, int]) -> AsyncIterator[str]:
    """With the stack's own configuration, of these targets; its address."""
    told = yaml.safe_load((ROOT / "compose" / "prometheus" / "prometheus.yml").read_text())
    told["rule_files"] = [str(ROOT / "compose" / "prometheus" / "alerts.yml")]
    job = next(j for j in told["scrape_configs"] if j["job_name"] == "sluicegate")
    del job["authorization"]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{port}" for port in ports.values()]}]
    job["relabel_configs"] = [
        {
            "source_labels": ["__address__"],
            "regex": f"127.0.0.1:{port}",
            "target_label": "instance",
            "replacement": name,
        }
        for name, port in ports.items()
    ]
    told["scrape_configs"] = [job]
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(told))
    address = f"127.0.0.1:{free_port()}"
    process = await asyncio.create_subprocess_exec(
        *("prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'tsdb'}", "--log.level=error"),
        f"--web.listen-address={address}",
    )
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        await process.wait()


async def load(url: str, seconds: float) -> None:
    """Queries of both apps."""
    broker, topics = connect(url), Topics("boards")
    producer = broker.producer()
    await producer.start()
    outbox = Outbox(producer)
    await outbox.start()
    tensor = Tensor("image", "FP32", (1, PIXELS), struct.pack(f"<{PIXELS}f", *(0.0,) * PIXELS))
    began, sent, due = time.monotonic(), 0, 0.0
    while (at := time.monotonic() - began) < seconds:
        due += qps(at, seconds) * 0.02
        while due >= 1.0:
            due, sent = due - 1.0, sent + 1
            app = "vision" if sent % 3 else CARE
            message = codec.encode_query(f"q{sent}", (tensor,), app=app, now=time.time())
            outbox.post(topics.queries(app), message.value, key=message.key, headers=message.headers)
        await asyncio.sleep(0.02)
    await outbox.stop()
    await producer.stop()
    await broker.close()


async def series(session: aiohttp.ClientSession, expression: str, began: float, until: float) -> list[dict[str, Any]]:
    """What Prometheus says of an expression, every two seconds."""
    asked = {"query": expression.replace("$app", ".*"), "start": began, "end": until, "step": 2}
    async with session.get("/api/v1/query_range", params={k: str(v) for k, v in asked.items()}) as answer:
        said = await answer.json()
    if said["status"] != "success":
        raise SystemExit(f"{expression}: {said['error']}")
    return list(said["data"]["result"])


def legend(form: str, labels: Mapping[str, str]) -> str:
    """As Grafana fills it in."""
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), form)


async def draw(session: aiohttp.ClientSession, board: Mapping[str, Any], file: Path, began: float) -> list[str]:
    """All panels of a dashboard, two a row; the titles of those that are empty and should not be."""
    panels, until = board["panels"], time.time()
    rows = (len(panels) + 1) // 2
    figure, axes = plt.subplots(rows, 2, figsize=(12, 2.6 * rows), squeeze=False)
    empty = []
    for panel, axis in zip(panels, axes.flat, strict=False):
        drawn = 0
        for target in panel["targets"]:
            for one in await series(session, target["expr"], began, until):
                values = [(at - began, float(v)) for at, v in one["values"] if v not in ("NaN", "+Inf", "-Inf")]
                if values:
                    drawn += 1
                    label = legend(target["legendFormat"], one["metric"])
                    axis.plot(*zip(*values, strict=True), linewidth=1.1, label=label)
        if not drawn and panel["title"] not in QUIET:
            empty.append(panel["title"])
        axis.set_title(f"{panel['title']} ({panel['fieldConfig']['defaults']['unit']})", fontsize=9, loc="left")
        axis.set_xlim(0, until - began)
        axis.set_ylim(bottom=0)
        axis.tick_params(labelsize=7)
        if drawn:
            axis.legend(fontsize=6, ncols=2 if drawn > 4 else 1, loc="upper left")
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    figure.suptitle(board["title"], fontsize=11)
    figure.tight_layout(rect=(0, 0, 1, 0.985))
    figure.savefig(file, dpi=90)
    plt.close(figure)
    return empty


async def show(url: str, folder: Path, seconds: float) -> list[str]:
    """Serve, load, draw; what was empty."""
    empty: list[str] = []
    async with processes(folder, url) as ports, prometheus(folder, ports) as address:
        await asyncio.sleep(8.0)
        began = time.time()
        await load(url, seconds)
        await asyncio.sleep(6.0)
        async with aiohttp.ClientSession(address) as session:
            for name in ("queries", "machines"):
                board = json.loads((ROOT / "compose" / "grafana" / "dashboards" / f"{name}.json").read_text())
                empty += await draw(session, board, HERE / f"dashboard-{name}.png", began)
            async with session.get("/api/v1/alerts") as answer:
                alerts = (await answer.json())["data"]["alerts"]
            async with session.get("/api/v1/targets") as answer:
                targets = (await answer.json())["data"]["activeTargets"]
    print("targets up:", sum(t["health"] == "up" for t in targets), "of", len(targets))
    print("alerts:", ", ".join(f"{a['labels']['alertname']} ({a['state']})" for a in alerts) or "none")
    return empty


def main() -> None:
    """Run, draw, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", nargs="?", type=float, default=120.0)
    parser.add_argument("--kafka", help="kafka://host:port (default: start one)")
    given = parser.parse_args()
    given.no_kafka = False
    with tempfile.TemporaryDirectory() as place, kafka_at(given) as url:
        if url is None:
            raise SystemExit("this needs Apache Kafka: `sluice broker start`, and --kafka kafka://127.0.0.1:9092")
        if empty := asyncio.run(show(url, Path(place), given.seconds)):
            raise SystemExit(f"empty panels: {', '.join(empty)}")


if __name__ == "__main__":
    main()
