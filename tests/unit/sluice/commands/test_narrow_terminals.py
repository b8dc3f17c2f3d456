"""What commands print on a terminal of 80 columns: whole words and numbers; and what a plan otherwise would change."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.sluice.audit.dead_letter_replay import Replay
from sluicegate.sluice.audit.fault_windows import WindowReport
from sluicegate.sluice.audit.promise_audit import StreamReport
from sluicegate.sluice.catalogue.open_catalogue import open_catalogue
from sluicegate.sluice.commands.models import variants
from sluicegate.sluice.commands.models.register import candidate_table
from sluicegate.sluice.commands.reading import results
from sluicegate.sluice.commands.reading.audit import promises_table, windows_table
from sluicegate.sluice.commands.reading.dead_letters import _show
from sluicegate.sluice.commands.running.demo import reading_on
from sluicegate.sluice.commands.topics import Found, _tell_differences
from sluicegate.sluice.console import out
from sluicegate.sluice.main import app, register_all
from sluicegate.sluice.settings.settings import Settings
from sluicegate.stages.telemetry.metric_catalogue import CATALOGUE
from sluicegate.streams.kafka.topic_configs import Difference
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import Record
from sluicegate.streams.records.dead_letters import DeadLetter
from tests.harness import toy_catalogue
from tests.unit.sluice.commands.models.test_candidate_rows import candidate, record

EXAMPLES = Path(__file__).parents[4] / "examples"
TWO_APPS = str(EXAMPLES / "problems" / "two-apps.yaml")


register_all()


@pytest.mark.parametrize(
    "command",
    [
        ["plan", "--problem", TWO_APPS, "--explain", "--what-if", "demand.images=x2"],
        ["sustain", "--latency-ms", "1:5,8:20,32:60", "--slo-ms", "100", "--mk", "2,10"],
        ["topics"],
        ["devices", "list", "--fake-gpu", "a100x2"],
        ["describe", "settings"],
        ["describe", "metrics"],
        ["describe", "acls", "--app", "clouds-of-points"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_tables_fit_80_columns(command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.setattr(out, "_width", 80)
    printed = CliRunner().invoke(app, command).stdout
    assert printed and "\u2026" not in printed
    assert max(len(line) for line in printed.splitlines()) <= 80


def test_what_if_says_what_it_changes() -> None:
    told = CliRunner().invoke(app, ["plan", "--problem", TWO_APPS, "--what-if", "demand.images=x2", "--json"])
    document = json.loads(told.stdout)
    changes = document["difference"]
    assert changes["objective"] == pytest.approx(document["what_if"]["objective"] - document["objective"])
    assert changes["objective"] < 0.0
    assert changes["apps"]["images"]["demand_qps"] == 600.0 and changes["apps"]["words"]["demand_qps"] == 0.0
    counts = {(row["app"], row["variant"]): row["count"] for row in changes["hosts"]}
    assert counts[("images", "images-medium")] < 0 < counts[("images", "images-small")]
    shown = CliRunner().invoke(app, ["plan", "--problem", TWO_APPS, "--what-if", "demand.images=x2"]).stdout
    assert "what that changes" in shown and "+600.0" in shown


def test_the_chart_of_sustained_rates_has_a_bar_at_the_slo_that_was_asked_for() -> None:
    told = CliRunner().invoke(app, ["sustain", "--latency-ms", "1:5,8:20,32:60", "--slo-ms", "70", "--mk", "2,10"])
    rate = float(told.stdout.split("\u2502")[4])
    (line,) = (line for line in told.stdout.splitlines() if line.strip().startswith("70.00 ms"))
    assert float(line.split()[-1].removesuffix("/s")) == pytest.approx(rate, abs=0.1)


def test_what_an_audit_tells_of_windows_and_promises_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "_width", 80)
    window = WindowReport(
        name="cpu12 missed", began=1.7e9, ended=1.7e9 + 86_400.5, queries=7_654_321, lost=1234, duplicates=98_765,
        late_unmarked=43_210, promises_broken=56_789,
    )  # fmt: skip
    stream = StreamReport(
        app="clouds-of-points", stream="station-12", queries=7_654_321, rejected=98_765, misses=654_321, mcd=43_210,
        worst={5: 4, 1000: 998}, kept=False, broken=87_654, unannounced=76_543, agrees=False, example=(),
        broken_at=(), unannounced_at=(),
    )  # fmt: skip
    with out.capture() as captured:
        out.print(windows_table([window]))
        out.print(promises_table([stream]))
    printed = captured.get()
    assert max(len(line) for line in printed.splitlines()) <= 80 and "\u2026" not in printed
    words = printed.split()
    numbers = ("86400.5", "7654321", "1234", "98765", "43210", "56789", "654321", "11111", "76543", "unmarked", "no")
    assert {*numbers, "2023-11-14", "22:13:20+00:00", "cpu12", "missed", "998", "1000", "tracked"} <= {*words}


def test_variants_are_named_whole_beside_their_figures_and_why_others_are_not_served_breaks_between_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(out, "_width", 80)
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    served, other = "v1.medium.int8-static-channel", "v1.medium.int8-static"
    points = tuple(BatchLatency(batch, 1e-3 * (1 + batch / 16), 2e-3, 1e-3) for batch in (1, 64))
    catalogue = Catalogue.of(
        [App(name="clouds", slo=0.1)],
        [
            Variant(name=f"clouds.{served}", app="clouds", accuracy=0.804, accuracy_se=0.013),
            Variant(name="clouds.v1.small.fp32", app="clouds", accuracy=0.5, accuracy_se=0.013),
        ],
        [Profile(variant=f"clouds.{served}", device_type="cpu", points=points, memory_bytes=123_400_000, load=0.1)],
    )
    reason = f"dominated by clouds.{served}, which is as accurate within the noise (+0.1 ± 0.8 points), and as fast"
    loser = {"name": f"clouds.{other}", "accuracy": 0.8, "reason": reason}
    monkeypatch.setattr(variants, "open_catalogue", lambda *_: (catalogue, tmp_path))
    monkeypatch.setattr(variants, "_not_served", lambda _: [loser])
    told = CliRunner().invoke(app, ["variants", "--app", "clouds"])
    lines = told.stdout.splitlines()
    assert told.exit_code == 0 and max(len(line) for line in lines) <= 80
    row = next(line for line in lines if served in line)
    assert row.split() == [served, "80.4", "±1.3", "cpu", "1.06", "2.00", "64:", "5.00", "12800", "123.4"]
    began = next(i for i, line in enumerate(lines) if line.startswith("not served"))
    said = " ".join(line.strip() for line in lines[began:])
    assert said == f"not served: {other}, 80.0 %: {reason.replace('clouds.', '')}"


def test_candidates_of_models_with_long_names_are_named_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{model}.int8-static-channel" for model in ("resnet18_quarter", "resnet18_halved")]
    console = Console(width=80)
    with console.capture() as captured:
        console.print(candidate_table(record(*(candidate(name, ("cpu", 0.0123)) for name in names))))
    words = captured.get().split()
    assert {*names} <= {*words}


def test_metrics_are_named_whole_with_what_to_do_or_it_is_said_that_none_is_called_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(out, "_width", 80)
    told = CliRunner().invoke(app, ["describe", "metrics"]).stdout
    words = " ".join(told.split())
    for metric in CATALOGUE:
        assert f"{metric.exported} {metric.unit}" in words
        assert " ".join(f"{metric.meaning} {metric.remedy}".split()) in words
    assert CliRunner().invoke(app, ["describe", "metrics", "lagg"]).stdout == "no metric has 'lagg' in its name\n"


def test_topics_that_are_otherwise_are_named_whole_with_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "_width", 80)
    topic = "shop.eu.app.clouds-of-points-of-the-north.results"
    other = Difference(topic=topic, what="min.insync.replicas", wants="2147483647", has="2147483646", remedy="look")
    with out.capture() as captured:
        _tell_differences(Found(specs=(), differences=(other,), unserved=()), as_json=False)
    table, _ = captured.get().split("look")
    columns = [[cell.strip() for cell in line.split("\u2502")[1:-1]] for line in table.splitlines()]
    told = ["".join(parts) for parts in zip(*(cells for cells in columns if cells), strict=True)]
    assert told == [topic, "min.insync.replicas", "2147483646", "2147483647"]


def test_results_where_there_is_no_result_topic_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "open_broker", lambda *_: MemoryBroker())
    told = CliRunner().invoke(app, ["results", "--prefix", "shop.eu"])
    assert told.exit_code == 2 and told.stdout == ""
    assert "error no result topics under 'shop.eu' at memory://: start `sluice up`, or name its --prefix" in told.stderr


def test_dead_letters_say_whole_which_record_they_are_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "_width", 80)
    place = ("shop.eu.app.clouds-of-points.queries", 3, 1234567)
    kept = Record(*place, None, b"x", (), 1.7e9)
    letter = DeadLetter(place, "invalid", "body", "body: is no [/]JSON", "admission", 1.7e9 + 1, "id[/7]", kept, False)
    with out.capture() as captured:
        _show([Replay(letter, "clouds-of-points"), Replay(letter, None, refused="its query has an outcome")], "told")
    first = "2023-11-14 22:13:21+00:00  shop.eu.app.clouds-of-points.queries/3/1234567  id[/7]"
    why = "  invalid: body: is no [/]JSON"
    again = ("  asked again: yes", "  asked again: no, its query has an outcome")
    assert captured.get().splitlines() == [first, why, again[0], first, why, again[1], "told"]
    with out.capture() as captured:
        _show([Replay(replace(letter, at=1e20), "clouds-of-points")], "told")
    assert captured.get().startswith("not known  shop.eu.app.clouds-of-points.queries/3/1234567"), (
        "a time as strangers say"
    )


def test_the_demo_says_how_its_topics_are_read_wherever_they_are() -> None:
    kept = reading_on(Settings(broker="memory://"), Path("/my runs/7"), Path("s.yaml"))
    assert kept == ["topics: '/my runs/7'", "sluice audit '/my runs/7'", "sluice explain ID --run '/my runs/7'"]
    kafka = Settings(broker="kafka://b1:9092,b2:9093", prefix="sluice.demo-1")
    there = "--broker kafka://b1:9092,b2:9093 --prefix sluice.demo-1"
    assert reading_on(kafka, Path("/r/7"), None) == [
        "logs: /r/7",
        f"sluice audit {there}",
        f"sluice explain ID {there}",
    ]
    assert reading_on(kafka, Path("/r/7"), Path("s.yaml"))[1] == f"sluice audit {there} --settings s.yaml"


@pytest.mark.parametrize("made", [False, True])
def test_making_models_says_one_line_and_finding_them_none(
    made: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLUICE_HOME", raising=False)

    def ensure(_: Path, told: Callable[[str, float], None], **__: object) -> Catalogue:
        for part in range(4 if made else 0):
            told(f"model {part}", part / 4)
        return toy_catalogue(("digits", "signals"))

    monkeypatch.setattr("sluicegate.executors.demo_catalogue.ensure_demo_catalogue", ensure)
    open_catalogue(Settings(home=tmp_path))
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err == ("the demo's models are being made, once: under a minute on two idle cores\n" if made else "")
