"""``sluice sustain``: the rate a promise sustains, from latencies given or profiled."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App, Promise, QueryClass, WeaklyHard
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.sustainable_rate import NEARLY
from sluicegate.domain.models.variant import Variant
from sluicegate.policies.promises.keeper import Hops
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.sluice.commands.offline import sustain
from sluicegate.sluice.system.promise_terms import kept, rows_refused

app = typer.Typer()
sustain.register(app)
app.callback()(lambda: None)

EIGHT = ("--latency-ms", "8:10", "--slo-ms", "20")


def asked(*arguments: str) -> dict[str, float]:
    result = CliRunner().invoke(app, ["sustain", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, float] = json.loads(result.output)
    return found


@pytest.mark.parametrize(
    ("promise", "bound"),
    [((), 8), (("--mk", "5,10"), 16), (("--mk", "4,10"), 13), (("--mcd", "2"), 24), (("--mk", "7,10"), 26),
     (("--mcd", "2", "--mk", "4,10", "--mk", "5,10"), 13)],
)  # fmt: skip
def test_eight_in_ten_milliseconds_within_twenty(promise: tuple[str, ...], bound: int) -> None:
    found = asked(*EIGHT, *promise)
    assert found == {"batch": 8, "window_ms": 10.0, "bound_per_window": bound, "max_rate_qps": bound / 0.01}


def test_batches_between_the_points_are_interpolated_and_the_best_is_taken() -> None:
    found = asked("--latency-ms", "1:10,5:14,64:200", "--slo-ms", "30")
    assert found["batch"] == 5
    assert found["window_ms"] == 14.0


def test_the_rate_is_drawn_on_the_terminal_and_into_a_file(tmp_path: Path) -> None:
    picture = tmp_path / "rate.png"
    result = CliRunner().invoke(app, ["sustain", *EIGHT, "--plot", str(picture)])
    assert result.exit_code == 0
    assert "█" in result.output
    assert "800" in result.output
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_another_model_on_the_device_takes_its_part_of_the_cycle() -> None:
    found = asked("--latency-ms", "8:10", "--slo-ms", "30", "--others-ms", "10")
    assert (found["window_ms"], found["bound_per_window"]) == (20.0, 8)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--latency-ms", "8:10", "--slo-ms", "19"), "20 ms"),
        (("--latency-ms", "8;10", "--slo-ms", "20"), "b:ms"),
        (("--latency-ms", "0:10", "--slo-ms", "20"), "b:ms"),
        (("--latency-ms", "8:-1", "--slo-ms", "20"), "positive"),
        (("--latency-ms", "8:10,4:5", "--slo-ms", "20"), "ascending"),
        (("--latency-ms", "8:10", "--slo-ms", "nan"), "--slo-ms"),
        (("--latency-ms", "8:10", "--slo-ms", "20", "--mk", "5"), "m,K"),
        (("--latency-ms", "8:10", "--slo-ms", "20", "--mk", "10,10"), "weakly_hard"),
        (("--latency-ms", "8:10", "--slo-ms", "20", "--mcd", "-1"), "max_consecutive"),
        (("--latency-ms", "8:10", "--slo-ms", "20", "--others-ms", "-1"), "--others-ms"),
        (("--slo-ms", "20"), "--latency-ms"),
    ],
)
def test_bad_input_ends_with_one_line_and_code_2(arguments: tuple[str, ...], named: str) -> None:
    result = CliRunner().invoke(app, ["sustain", *arguments])
    assert result.exit_code == 2
    assert named in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def exact(promise: Promise) -> Catalogue:
    """Batches of 8 + b ms for an SLO of 100 ms, and best effort."""
    points = tuple(BatchLatency(b, 0.008 + 0.001 * b, 0.008 + 0.001 * b) for b in (1, 64))
    profile = Profile(variant="v", device_type="cpu", points=points)
    return Catalogue.of(
        [App(name="a", slo=0.1, promise=promise), App(name="loose", slo=0.5, query_class=QueryClass.BEST_EFFORT)],
        [Variant(name="v", app="a", accuracy=0.9), Variant(name="w", app="loose", accuracy=0.8)],
        [profile, replace(profile, variant="w")],
    )


@pytest.mark.parametrize(
    "promise",
    [Promise(weakly_hard=(WeaklyHard(2, 10),)), Promise(weakly_hard=(WeaklyHard(4, 10),)), Promise(max_consecutive=2)],
)
def test_a_stream_alone_whose_batches_do_not_vary_is_announced_most_of_the_theorem_at_first(promise: Promise) -> None:
    """A p95 permits that one batch in twenty takes a third longer."""
    alone, beside = kept(exact(promise), [Device(name="d", type="cpu")], Hops(), "a")
    assert alone.theorem is not None and (alone.beside, beside.beside) == ((), ("loose",))
    assert 0.8 < alone.first_rate / alone.theorem.rate < 0.9 < alone.rate / alone.theorem.rate < 1.0
    assert NEARLY * alone.rate <= beside.rate < alone.rate  # shorter turns
    assert beside.blocking_s > alone.share.processing_s


def test_the_bound_of_a_system_is_explained_term_by_term(tmp_path: Path) -> None:
    save_catalogue(tmp_path / "known", exact(Promise()), {})
    settings = tmp_path / "settings.yaml"
    settings.write_text(
        f"catalogue: {tmp_path / 'known'}\ndevices: [{{name: one, type: cpu}}]\n"
        "promises: {a: {weakly_hard: [[2, 10]]}}\nworker: {batching: adaptive}\n"
    )
    asked = ["sustain", "--system", "--settings", str(settings)]
    found = CliRunner().invoke(app, [*asked, "--json"])
    assert found.exit_code == 0, found.output
    alone, beside = json.loads(found.output)["promises"]
    assert (alone["beside"], beside["beside"], alone["refused"]) == ([], ["loose"], "")
    assert alone["batch_ms"] == pytest.approx(alone["batch_usual_ms"] + alone["jitter_ms"])
    assert alone["batch_ms"] + alone["window_ms"] + alone["hop_ms"] <= 100.0
    assert alone["rate_qps"] == pytest.approx(1e3 * alone["bound_by_rows"]["1"] / alone["window_ms"])
    assert beside["blocking_ms"] > alone["batch_ms"] > beside["batch_ms"]
    told = CliRunner().invoke(app, asked)
    assert told.exit_code == 0
    for term in ("jitter", "turns of the others", "blocking", "hop", "queries of 8 rows", "at first", "the theorem"):
        assert term in told.output


def test_the_start_tells_of_queries_that_no_device_takes_and_of_an_slo_with_which_it_would() -> None:
    known, devices = exact(Promise(weakly_hard=(WeaklyHard(2, 10),))), [Device(name="d", type="cpu")]

    def said(max_rows: int, slo: float, hops: Hops) -> list[str]:
        app = replace(known.apps["a"], max_rows=max_rows, slo=slo)
        served = replace(known, apps={**known.apps, "a": app})
        return [one.detail for one in rows_refused(served, devices, hops, [app])]

    for hops in (Hops(), Hops(0.03)):
        alone, _ = kept(known, devices, hops, "a")
        most = alone.first.batch
        assert said(most, 0.1, hops) == []
        (detail,) = said(most + 4, 0.1, hops)
        found = re.search(rf"a batch that keeps its promise holds {most}\..* an SLO of ([\d.]+) ms", detail)
        assert found is not None
        slo = float(found[1]) / 1e3
        assert said(most + 4, slo, hops) == []
        assert said(most + 4, 0.99 * slo, hops) != []
    assert said(65, 10.0, Hops()) != [] and "a longer SLO" not in said(16, 0.1, Hops()), "no profile says more"
