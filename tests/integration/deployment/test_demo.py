"""The demo's contract, and real models end to end."""

import asyncio
import json
import socket
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.outcome import OutcomeKind
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import digest_of, load_catalogue, save_catalogue
from sluicegate.profiles.demo.build_models import build, samples
from sluicegate.simulator.arrivals.lists import ListedArrivals
from sluicegate.sluice.audit.result_log import read_results, result_topics
from sluicegate.sluice.load.demo_run import LOG, ROWS, _running, _watched, peak_qps
from sluicegate.sluice.load.open_loop_client import Sender, samples_of
from sluicegate.sluice.main import app, register_all
from sluicegate.streams import connect
from sluicegate.streams.records import codec
from tests.harness import PATIENCE_S, running, settings_for, toy_catalogue

KEYS = {
    "queries", "answered_on_time", "late", "expired", "dropped", "rejected", "failed", "lost", "duplicates",
    "effective_accuracy", "slo_attainment", "goodput_qps", "variants_used", "plan_epochs", "wall_s",
}  # fmt: skip
ENDS = ("answered_on_time", "late", "expired", "dropped", "rejected", "failed")


def test_the_demo_asks_for_what_the_cores_carry_beside_a_broker_and_its_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    kafka = "kafka://127.0.0.1:1"
    asked = [
        peak_qps(toy_catalogue(), ["toy"], settings_for(at, tmp_path, delivery=delivery))
        for at, delivery in (("memory://", "at_least_once"), (kafka, "at_least_once"), (kafka, "exactly_once"))
    ]
    assert asked[1:] == pytest.approx([asked[0] / 3, asked[0] / 9])


def test_the_demo_accounts_for_every_query_and_writes_its_report(tmp_path: Path) -> None:
    toy = toy_catalogue(apps=("east", "west"))
    wide = [
        replace(p, points=(*p.points, BatchLatency(ROWS, 2 * p.points[-1].median, 2 * p.points[-1].p95)))
        for p in toy.profiles.values()
    ]
    save_catalogue(tmp_path / "catalogue", Catalogue.of(toy.apps.values(), toy.variants.values(), wide), {})
    settings = {
        "catalogue": str(tmp_path / "catalogue"),
        "home": str(tmp_path),
        "runs": str(tmp_path / "runs"),
        "apps": ["east", "west"],
        "worker": {"executor": "emulated"},
    }
    file = tmp_path / "settings.yaml"
    file.write_text(json.dumps(settings))
    register_all("demo")
    report = tmp_path / "report"
    command = ["demo", "--duration", "8", "--settings", str(file), "--report", str(report), "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    summary = json.loads((report / "summary.json").read_text())
    assert set(summary) >= KEYS
    assert summary["queries"] > 50
    assert sum(summary[end] for end in ENDS) == summary["queries"]
    assert summary["lost"] == summary["duplicates"] == 0
    assert summary["plan_epochs"] >= 1
    assert set(summary["variants_used"]) == {"east", "west"}
    ways = summary["simulated"]
    assert list(ways) == ["all variants", "the best alone", "the fastest alone"]
    assert ways["the best alone"]["accuracy"] > ways["the fastest alone"]["accuracy"]
    assert ways["the best alone"]["missed"] >= ways["the fastest alone"]["missed"]
    page = (report / "index.html").read_text()
    assert page.count("<svg") == 4
    assert summary["first_line"] in page and "the best variants alone would have missed" in page
    assert (next((tmp_path / "runs").glob("*/topics.json"))).is_file()


async def test_a_stage_that_cannot_start_ends_the_demo_at_once_and_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = settings_for("memory://", tmp_path, metrics={"port": taken.getsockname()[1]})
        ended = False
        with pytest.raises(ConfigurationError, match=r"metrics 127\.0\.0\.1:.* in use"):
            async with _running(settings, toy_catalogue(), tmp_path, tmp_path / "run"):
                await asyncio.sleep(PATIENCE_S)
                ended = True
        assert not ended, "there is nothing to wait for"


async def test_a_process_that_ends_ends_the_demo_at_once_with_what_it_said(tmp_path: Path) -> None:
    log = tmp_path / LOG
    log.write_text("starting\nerror device 'cpu9' is not there\n", encoding="utf-8")
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "raise SystemExit(2)")
    with pytest.raises(ConfigurationError, match=r"process of worker cpu9 ended: device 'cpu9' is not there \(log: "):
        await asyncio.wait_for(_watched({"worker cpu9": process}, log), PATIENCE_S)


@pytest.mark.thorough
async def test_real_models_answer_as_accurately_as_they_were_measured(tmp_path: Path) -> None:
    cheap = ("lin40", "wave8", "wave32")
    built = [b for b in build(["signals"]) if b.variant.name in cheap]
    points = tuple(BatchLatency(b, 0.002, 0.004) for b in (1, 64))
    profiles = [Profile(variant=b.variant.name, device_type="cpu", points=points, load=0.1) for b in built]
    catalogue = Catalogue.of([built[0].app], [b.variant for b in built], profiles)
    save_catalogue(tmp_path / "catalogue", catalogue, {digest_of(b.model): b.model for b in built})
    catalogue = load_catalogue(tmp_path / "catalogue")
    settings = settings_for("memory://", tmp_path, worker={"executor": "onnx"}, slo_s={"signals": 2.0})
    known = samples("signals")
    queries = 120
    async with running(settings, connect("memory://"), catalogue=catalogue, models=tmp_path / "catalogue") as run:
        await run.planned()
        ready = samples_of(catalogue.apps["signals"], known.inputs, known.labels, rows=16)
        sender = Sender(run.producer, run.topics, run.system.clock, [ready], run="real")
        await sender.replay(ListedArrivals({"signals": np.arange(queries) * 0.01}))
        run.sent = queries
        report = await run.settled()
        assert report.balanced
        right = rows = 0
        used = set()
        partitions = await result_topics(run.broker, run.topics)
        async for record in read_results(run.broker, partitions, follow=False):
            message = codec.decode_outcome(record)
            assert message.outcome.kind is OutcomeKind.ANSWERED
            used.add(message.outcome.variant)
            truth = sender.labels_of("signals", message.outcome.query_id)
            label = next(t for t in message.outputs() if t.name == "label")
            assert truth is not None
            right += int((np.frombuffer(label.data, dtype="<i8") == truth).sum())
            rows += truth.size
    (name,) = used
    variant = catalogue.variants[str(name)]
    noise = np.sqrt(variant.accuracy_se**2 + variant.accuracy * (1 - variant.accuracy) / rows)
    assert name == "wave32"
    assert abs(right / rows - variant.accuracy) < 3 * noise
