"""What is drawn and written of runs: every curve, bar and cell has its own figure, in its unit, in its place."""

import math
from dataclasses import replace
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from sluicegate.domain.fold import OutcomeFold
from sluicegate.simulator.bound import Bound
from sluicegate.simulator.report import charts, pages
from sluicegate.simulator.report.page import Figure, Table, Tile
from sluicegate.simulator.scenario.experiment import Run
from sluicegate.simulator.time_series import Series


def series(**changes: Any) -> Series:
    given: dict[str, Any] = {
        "step": 2.0,
        "demand": [10.0, 20.0, 30.0],
        "goodput": [9.0, 19.0, 25.0],
        "accuracy": [1.0, math.nan, 0.875],
        "variants": {"a/x": [1.0, 2.0, 3.0], "a/y": [4.0, 0.0, 1.0]},
        "latencies": [(0.01, 5), (0.1, 20), (0.4, 15)],
        "marks": ((1.5, "plan 2"), (3.0, "")),
    }
    return Series(**{**given, **changes})


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts give their axes, not their text."""
    monkeypatch.setattr(charts, "svg_of", lambda figure: figure.axes[0])


def curves(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    """Those that a legend would name."""
    return {
        str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata()))
        for line in axes.lines
        if not str(line.get_label()).startswith("_")
    }


def legend(axes: Axes) -> list[str]:
    found = axes.get_legend()
    return [text.get_text() for text in found.get_texts()] if found else []


@pytest.mark.usefixtures("drawn")
def test_demand_is_of_the_first_and_goodput_of_each_named_only_where_there_are_several() -> None:
    axes: Any = charts.demand_chart({"one": series()})
    assert curves(axes) == {"goodput": ([1.0, 3.0, 5.0], [9.0, 19.0, 25.0])}
    assert legend(axes) == ["demand", "goodput"]
    two: Any = charts.demand_chart({"one": series(), "other": series(demand=[99.0, 0.0, 0.0], goodput=[8.0, 7.0, 6.0])})
    assert curves(two)["goodput, other"] == ([1.0, 3.0, 5.0], [8.0, 7.0, 6.0])
    assert legend(two) == ["demand", "goodput, one", "goodput, other"]
    for made in (axes, two):
        (demand,) = made.collections
        assert demand.get_paths()[0].vertices[:, 1].max() == 30.0
        assert demand.get_linewidth().tolist() == [0.0], "a plane without an outline"
        assert made.get_ylim()[0] == 0.0


@pytest.mark.usefixtures("drawn")
def test_a_mark_is_a_line_with_its_text_if_it_has_any() -> None:
    axes: Any = charts.demand_chart({"one": series()})
    assert [line.get_xdata()[0] for line in axes.lines if str(line.get_label()).startswith("_")] == [1.5, 3.0]
    assert [(text.get_text(), text.xy[0]) for text in axes.texts] == [("plan 2", 1.5)]


@pytest.mark.usefixtures("drawn")
def test_accuracy_is_in_percent_and_named_only_where_there_are_several() -> None:
    axes: Any = charts.accuracy_chart({"one": series()})
    x, y = curves(axes)["one"]
    assert (x, [y[0], y[2]], math.isnan(y[1])) == ([1.0, 3.0, 5.0], [100.0, 87.5], True)
    assert legend(axes) == []
    assert legend(charts.accuracy_chart({"one": series(), "other": series()})) == ["one", "other"]  # type: ignore[arg-type]


@pytest.mark.usefixtures("drawn")
def test_legends_of_curves_over_time_stand_above_them() -> None:
    three = {f"system-{n}": series() for n in range(3)}
    for axes in (charts.demand_chart(three), charts.accuracy_chart(three)):
        made: Any = axes
        made.figure.draw_without_rendering()
        assert made.get_legend().get_window_extent().y0 >= made.get_window_extent().y1


@pytest.mark.usefixtures("drawn")
def test_the_ten_most_used_variants_are_named_in_order_of_name_and_the_rest_stands_on_them() -> None:
    variants = {f"a/v{n:02}": [float(n), 1.0, 0.0] for n in range(12)}
    axes: Any = charts.variants_chart(series(variants=variants))
    assert [part.get_label() for part in axes.collections] == [f"a/v{n:02}" for n in range(2, 12)] + ["2 others"]
    first, *_, rest = [part.get_paths()[0].vertices[:, 1] for part in axes.collections]
    assert (first.min(), first.max()) == (0.0, 2.0)
    assert rest.max() == sum(range(12)), "all of them together at the first step"
    assert len(charts.variants_chart(series(variants=dict(list(variants.items())[2:]))).collections) == 10  # type: ignore[attr-defined]
    assert len(charts.variants_chart(series(variants={})).collections) == 0  # type: ignore[attr-defined]


@pytest.mark.usefixtures("drawn")
def test_a_variant_has_one_colour_in_all_charts_of_a_page_and_no_two_have_the_same() -> None:
    few = series(variants={"a/v03": [1.0, 2.0, 3.0], "a/v11": [1.0, 1.0, 1.0]})
    many = series(variants={f"a/v{n:02}": [float(n), 1.0, 0.0] for n in range(12)})
    other = series(variants={"a/v03": [1.0, 0.0, 0.0], "b/w": [0.0, 2.0, 0.0]})
    page = [few, many, other]
    made: list[Any] = [charts.variants_chart(one, page) for one in page]
    found = [{part.get_label(): to_hex(part.get_facecolor()[0]) for part in axes.collections} for axes in made]
    colours = {name: colour for chart in found for name, colour in chart.items()}
    assert found == [{name: colours[name] for name in chart} for chart in found]
    assert len({*colours.values()}) == len(colours) == 12
    assert colours["2 others"] == "#bbbbbb"


@pytest.mark.usefixtures("drawn")
def test_latencies_are_the_share_within_so_many_milliseconds_with_a_line_at_each_slo() -> None:
    axes: Any = charts.latency_chart({"one": series().latencies, "none": ()}, slos=[0.3, 0.2, 0.3])
    x, y = curves(axes)["one"]
    assert x == pytest.approx([10.0, 100.0, 400.0])
    assert y == pytest.approx([12.5, 62.5, 100.0])
    assert [line.get_xdata()[0] for line in axes.lines[1:]] == pytest.approx([200.0, 300.0])
    assert axes.get_xscale() == "log"
    assert legend(axes) == ["one"]
    assert legend(charts.latency_chart({"one": series().latencies}, slos=[0.3])) == []  # type: ignore[arg-type]


@pytest.mark.usefixtures("drawn")
def test_bars_stand_in_the_order_given_from_the_top_each_with_its_interval_where_that_is_known() -> None:
    axes: Any = charts.bars_chart({"best": (3.0, 0.5), "other": (1.0, math.nan), "last": (2.0, 0.25)}, "%")
    heights = {text.get_text(): at for text, at in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)}
    assert heights["best"] > heights["other"] > heights["last"]
    (spans,) = [part.get_segments() for part in axes.collections]
    found = {
        round(bar.get_y() + bar.get_height() / 2): (bar.get_width(), to_hex(bar.get_facecolor()))
        for bar in axes.patches
    }
    wide = {round(float(span[0][1])): (float(span[0][0]), float(span[1][0])) for span in spans}
    assert {name: (*found[at], wide[at]) for name, at in heights.items()} == {
        "best": (3.0, charts.COLOURS[0], (2.5, 3.5)),
        "other": (1.0, charts.COLOURS[1], (1.0, 1.0)),
        "last": (2.0, charts.COLOURS[2], (1.75, 2.25)),
    }
    assert axes.get_xlabel() == "%"
    assert any(line.get_visible() for line in axes.get_xgridlines())
    assert not any(line.get_visible() for line in axes.get_ygridlines())


@pytest.mark.usefixtures("drawn")
def test_colours_begin_again_where_there_are_more_systems_than_colours() -> None:
    count = len(charts.COLOURS)
    axes: Any = charts.accuracy_chart({str(n): series(marks=()) for n in range(count + 1)})
    colours = [line.get_color() for line in axes.lines]
    assert colours == [*charts.COLOURS, charts.COLOURS[0]] and len({*colours}) == count


class Written:
    """What a page was made of, and charts by what they were given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: dict[str, Any] = {}
        monkeypatch.setattr(pages, "page", self._page)
        for name in ("demand_chart", "accuracy_chart", "variants_chart", "latency_chart", "bars_chart"):
            monkeypatch.setattr(pages, name, lambda *given, name=name: (name, *given))

    def _page(self, title: str, **given: Any) -> str:
        self.given = given
        return title

    @property
    def figures(self) -> dict[str, Any]:
        return {figure.title: figure.svg for figure in self.given["figures"] if isinstance(figure, Figure)}

    def table(self, title: str) -> list[Any]:
        (found,) = [t for t in self.given["tables"] if isinstance(t, Table) and t.title == title]
        return [tuple(row) for row in found.rows]

    @property
    def tiles(self) -> dict[str, str]:
        return {tile.label: tile.value for tile in self.given["tiles"] if isinstance(tile, Tile)}


SUMMARY = replace(
    OutcomeFold().summary(1.0),
    queries=1234,
    violation_ratio=0.0125,
    effective_accuracy=0.75,
    relative_accuracy=0.875,
    max_accuracy_drop=0.25,
    goodput_qps=99.96,
    p99_ms=12.6,
    answered_on_time=40,
    slo_attainment=0.5,
    variants_used={"a": {"x": 30, "y": 5}, "b": {"z": 5}},
    per_app={"a": {"queries": 70, "slo_attainment": 0.5, "effective_accuracy": 0.625, "relative_accuracy": 0.9375}},
)


def run(**changes: Any) -> Run:
    return Run(**{"summary": SUMMARY, "epochs": 7, "solve_s": (0.5,), "wall_s": 2.0, "seed": 11, **changes})


def test_a_page_of_a_run_tells_each_figure_once_and_the_bound_where_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = Written(monkeypatch)
    assert pages.simulation_page("title", "intro", run(), [0.3]) == "title"
    assert written.tiles == {
        "queries": "1234",
        "violations": "1.250 %",
        "right in time": "37.50 %",
        "effective accuracy": "75.00 %",
        "accuracy, of each app's best": "87.50 %",
        "largest accuracy drop, 10 s": "25.00 %",
        "goodput": "100.0/s",
        "p99 latency": "13 ms",
        "plan epochs": "7",
    }
    assert written.table("Variants") == [("a/x", "30", "75.0%"), ("a/y", "5", "12.5%"), ("b/z", "5", "12.5%")]
    assert written.table("Apps") == [("a", "70", "50.00 %", "62.50 %", "93.75 %")]
    assert written.figures == {} and written.given["notes"][-1] == "seed 11"
    bound = Bound(violation_ratio=0.005, right_in_time=0.8125, relative_right_in_time=0.9, certain=True)
    pages.simulation_page("title", "intro", run(bound=bound, series=series()), [0.3])
    assert written.tiles["violations at least"] == "0.500 %" and written.tiles["right in time at most"] == "81.25 %"
    assert written.figures == {
        "Demand and goodput": ("demand_chart", {"simulated": series()}),
        "Effective accuracy": ("accuracy_chart", {"simulated": series()}),
        "Variants that answered": ("variants_chart", series()),
        "Latency": ("latency_chart", {"answers": series().latencies}, [0.3]),
    }


def test_a_page_of_a_run_without_an_answer_in_time_has_no_share_of_any_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    written = Written(monkeypatch)
    nothing = replace(SUMMARY, answered_on_time=0, variants_used={"a": {"x": 0}})
    pages.simulation_page("title", "intro", run(summary=nothing), [0.3])
    assert written.table("Variants") == [("a/x", "0", "0.0%")]


def test_a_page_of_several_systems_has_means_and_half_widths_in_percent_and_plots_of_the_first_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = Written(monkeypatch)
    means = {
        "ours": {
            "violation_ratio": 0.03125,
            "effective_accuracy": 0.75,
            "ci95": {"violation_ratio": 0.015625, "effective_accuracy": 0.0625},
            "seeds": [3, 4],
        },
        "theirs": {
            "violation_ratio": 0.125,
            "effective_accuracy": 0.875,
            "ci95": {"violation_ratio": 0.25, "effective_accuracy": 0.03125},
            "seeds": [3, 4],
        },
    }
    first, second = series(), series(goodput=[1.0, 1.0, 1.0])
    runs = {"ours": [run(series=first), run(series=second)], "theirs": [run(), run(series=second)]}
    pages.comparison_page("title", "intro", runs, means, {"paper": {"violation_ratio": 0.5}}, [0.3])
    assert written.figures == {
        "Violations": ("bars_chart", {"ours": (3.125, 1.5625), "theirs": (12.5, 25.0)}, "%"),
        "Effective accuracy": ("bars_chart", {"ours": (75.0, 6.25), "theirs": (87.5, 3.125)}, "%"),
        "Demand and goodput": ("demand_chart", {"ours": first}),
        "Effective accuracy over time": ("accuracy_chart", {"ours": first}),
        "Latency": ("latency_chart", {"ours": first.latencies}, [0.3]),
        "Variants, ours": ("variants_chart", first, [first]),
    }
    rows = written.table("Means over 2 seeds, ± 95 % confidence")
    assert [row[0] for row in rows] == ["ours", "theirs", "paper"]
    assert written.given["intro"] == "intro"
    pages.comparison_page("title", "intro", {"ours": [run()]}, {"ours": means["ours"]}, {}, [0.3])
    assert [*written.figures] == ["Violations", "Effective accuracy"]


@pytest.mark.usefixtures("drawn")
def test_no_two_of_eighteen_systems_are_drawn_alike() -> None:
    many = {f"system {i}": series() for i in range(18)}
    found: Any = [charts.demand_chart(many), charts.accuracy_chart(many)]
    found.append(charts.latency_chart({name: one.latencies for name, one in many.items()}, slos=[]))
    for axes in found:
        drawn_as = [
            (to_hex(line.get_color()), str(line._dash_pattern))
            for line in axes.lines
            if not str(line.get_label()).startswith("_")
        ]
        assert len(set(drawn_as)) == len(drawn_as) == 18
