"""Report pages: escaped, self-contained, and the same for the same data."""

import math
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.simulator.report import (
    Figure,
    Series,
    SeriesFold,
    Table,
    Tile,
    accuracy_chart,
    bars_chart,
    demand_chart,
    latency_chart,
    page,
    variants_chart,
)


def _outcome(at: float, *, latency: float = 0.1, variant: str = "small", accuracy: float = 0.8) -> Outcome:
    return Outcome(
        query_id=str(at),
        app="a",
        kind=OutcomeKind.ANSWERED,
        arrival=at,
        deadline=at + 0.3,
        at=at + latency,
        variant=variant,
        accuracy=accuracy,
        best_accuracy=0.9,
    )


def test_a_series_tells_demand_goodput_accuracy_and_mix() -> None:
    fold = SeriesFold()
    fold.add(_outcome(0.2))
    fold.add(_outcome(0.4, latency=0.5))
    fold.add(_outcome(2.5, variant="large", accuracy=0.9))
    series = fold.series()
    assert series.demand == [2.0, 0.0, 1.0]
    assert series.goodput == [1.0, 0.0, 1.0]
    assert series.accuracy[0] == 0.8 / 0.9
    assert math.isnan(series.accuracy[1])
    assert series.variants == {"a/large": [0.0, 0.0, 1.0], "a/small": [1.0, 0.0, 0.0]}
    assert sum(count for _, count in series.latencies) == 3


def test_a_long_run_takes_wider_steps_and_loses_nothing() -> None:
    fold = SeriesFold()
    for second in range(5000):
        fold.add(_outcome(second + 0.5))
    series = fold.series()
    assert len(series.demand) <= 600
    assert sum(n * series.step for n in series.demand) == 5000
    assert sum(n * series.step for n in series.variants["a/small"]) == 5000


def test_steps_that_double_add_up_what_each_two_of_them_held() -> None:
    """Steps of half a second reach to 300 s, and of one second to 600 s: what comes then makes them two seconds."""
    fold = SeriesFold(0.5)
    fold.add(_outcome(-0.25))  # before the start counts as at it
    fold.add(_outcome(0.5, accuracy=0.45))
    fold.add(_outcome(1.25, accuracy=0.9, variant="large"))
    fold.add(_outcome(1.75, latency=0.3125))
    fold.add(_outcome(2.5, accuracy=0.72))
    assert (fold.series().step, fold.series().demand) == (0.5, [2.0, 2.0, 2.0, 2.0, 0.0, 2.0])
    fold.add(_outcome(299.75))
    assert fold.step == 0.5 and len(fold.series().demand) == 600
    fold.add(_outcome(600.25, accuracy=0.45))
    series = fold.series([(7.5, "here")])
    assert (series.step, len(series.demand), series.times[:2]) == (2.0, 301, [1.0, 3.0])
    assert (series.demand[:3], series.demand[149], series.demand[300]) == ([2.0, 0.5, 0.0], 0.5, 0.5)
    assert series.goodput[:2] == [1.5, 0.5]
    assert series.accuracy[0] == pytest.approx((0.8 + 0.45 + 0.9) / 0.9 / 3)
    assert [series.accuracy[1], series.accuracy[300]] == pytest.approx([0.8, 0.5])
    assert series.variants["a/large"][:2] == [0.5, 0.0] and len(series.variants["a/large"]) == 301
    assert series.marks == ((7.5, "here"),)


def test_what_is_answered_at_its_deadline_is_on_time_and_an_app_without_accuracy_counts_as_it_is() -> None:
    fold = SeriesFold()
    fold.add(replace(_outcome(1.5, accuracy=0.5), at=1.75, deadline=1.75, best_accuracy=0.0))
    fold.add(replace(_outcome(1.5), at=1.875, deadline=1.75))
    fold.add(replace(_outcome(1.5), kind=OutcomeKind.EXPIRED))
    series = fold.series()
    assert (series.demand, series.goodput, series.accuracy[1]) == ([0.0, 3.0], [0.0, 1.0], 0.5)
    assert sum(count for _, count in series.latencies) == 2
    assert [seconds for seconds, _ in series.latencies] == pytest.approx([0.25, 0.375], rel=0.05)


def _example() -> Series:
    return Series(
        step=1.0,
        demand=[10.0, 20.0, 30.0],
        goodput=[10.0, 19.0, 25.0],
        accuracy=[1.0, math.nan, 0.9],
        variants={f"a/v{i}": [1.0, 2.0, float(i)] for i in range(14)},
        latencies=[(0.01, 5), (0.1, 20), (0.4, 3)],
        marks=((1.5, "plan 2"),),
    )


def test_every_plot_is_well_formed_svg_and_repeatable() -> None:
    def drawn() -> list[str]:
        one = {"run": _example()}
        return [
            demand_chart(one),
            accuracy_chart({"x": _example(), "y": _example()}),
            variants_chart(_example()),
            latency_chart({"run": _example().latencies, "none": ()}, slos=[0.3]),
            bars_chart({"x": (1.0, 0.1), "y": (2.0, math.nan)}, "violations, %"),
        ]

    first, second = drawn(), drawn()
    assert first == second
    for svg in first:
        assert ET.fromstring(svg).tag.endswith("svg")
    assert "4 others" in first[2]


def test_a_page_escapes_text_and_fetches_nothing() -> None:
    html = page(
        "Run <1>",
        intro="a & b",
        tiles=[Tile("99 %", "attained <here>")],
        figures=[Figure("Demand", demand_chart({"run": _example()}), "queries/s")],
        tables=[Table("Systems", ["name", "x"], [["<script>", "1"]])],
        notes=["n<1"],
    )
    assert "<script>" not in html
    assert "Run &lt;1&gt;" in html
    assert "src=" not in html
    assert html.count("<svg") == 1


def test_a_page_has_of_each_part_what_it_was_given_and_nothing_of_the_others() -> None:
    marks = {"intro": "In short", "tiles": "attainment", "tables": "By app", "figures": "Demand", "notes": "Half a run"}
    given = {
        "intro": "In short",
        "tiles": [Tile("attainment", "99 %")],
        "tables": [Table("By app", ["app"], [["a"]])],
        "figures": [Figure("Demand", "<svg/>")],
        "notes": ["Half a run"],
    }
    for name, value in given.items():
        made = page("Title", **{name: value})  # type: ignore[arg-type]
        assert {part for part, mark in marks.items() if mark in made} == {name}
        assert ("<h2>Plots</h2>" in made, "<h2>Notes</h2>" in made) == (name == "figures", name == "notes")
        assert ('class="tiles"' in made, 'class="intro"' in made) == (name == "tiles", name == "intro")
    assert not any(mark in page("Title") for mark in marks.values())


def test_a_column_of_sentences_is_aligned_to_the_left_in_every_row_and_its_header() -> None:
    rows = [["1.1", "burst", "3 ms"], ["1.2", "latency of conv64 is 5.34 times its profile", "12 ms"]]
    made = page("Title", tables=[Table("Plans", ["epoch", "because", "solved in"], rows)])
    assert '<th class="text">because</th>' in made
    assert '<td class="text">burst</td>' in made
    assert '<td class="text long">latency of conv64' in made
    assert "<th>epoch</th>" in made
    assert "<th>solved in</th>" in made
    assert "<td>3 ms</td>" in made
    assert "<td>12 ms</td>" in made
