"""``sluice sustain``: the rate a variant sustains for ever on one device under a promise, against the SLO."""

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.models.app import Promise, WeaklyHard
from sluicegate.domain.models.profile import BatchLatency, LatencyCurve, Profile
from sluicegate.domain.models.sustainable_rate import Sustainable, max_rate
from sluicegate.sluice.catalogue.open_catalogue import open_catalogue
from sluicegate.sluice.commands.given_options import check_given, refuse_given
from sluicegate.sluice.commands.offline.sustain_system import show_system
from sluicegate.sluice.console import JsonOption, one_line_errors, out, print_json, require_plots
from sluicegate.sluice.settings.settings import load

_BAR = 48
_ROWS = 12


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sustain")(sustain)


def sustain(
    context: typer.Context,
    slo_ms: Annotated[float | None, typer.Option("--slo-ms", help="Latency objective, milliseconds.")] = None,
    latency_ms: Annotated[
        str | None, typer.Option("--latency-ms", help="Latency of batches, b:ms,… (8:10 = a batch of 8 takes 10 ms).")
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", help="VARIANT or VARIANT@DEVICE-TYPE of the catalogue (95th percentile).")
    ] = None,
    mcd: Annotated[int | None, typer.Option("--mcd", help="At most this many misses in a row.")] = None,
    mk: Annotated[
        list[str] | None, typer.Option("--mk", help="m,K: at most m misses in any K consecutive. May be repeated.")
    ] = None,
    others_ms: Annotated[
        float, typer.Option("--others-ms", help="Milliseconds of each cycle that go to other models of the device.")
    ] = 0.0,
    system: Annotated[
        bool, typer.Option("--system", help="What each promise of the settings comes to on its devices, term by term.")
    ] = False,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the rate against the SLO into this PNG.")] = None,
    config: Annotated[
        Path | None, typer.Option("--settings", help="Settings file (for --profile and --system).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """The highest rate that is sustained for ever: latency alone, runs of misses (MCD), (m, K), or all together."""
    with one_line_errors():
        if system:
            check_given(context, "with --system", "system", "config", "as_json")
            show_system(config, as_json)
            return
        if slo_ms is None:
            raise InvalidInputError("--slo-ms", "is missing; give the latency objective, or --system")
        if plot is not None:
            require_plots()
        if latency_ms is not None:
            refuse_given(context, "with --latency-ms, which no catalogue is needed for", ["config"])
        curve = _curve(latency_ms, profile, config)
        promise = promise_of(mcd, mk)
        slo = _seconds("--slo-ms", slo_ms)
        others = _seconds("--others-ms", others_ms, least=0.0)
        best = max_rate(curve, slo, promise, others_s=others)
        if best is None:
            raise ConfigurationError(
                f"no batch is sustained within {slo_ms:g} ms: waiting and execution take "
                f"{_shortest(curve, others):.3g} ms at least; give a longer SLO or a faster variant"
            )
        series = _against_slo(curve, promise, others, slo)
        if plot is not None:
            _draw(plot, series, best, slo)
    document = _document(best)
    if as_json:
        print_json(document)
        return
    _show(document, series, slo)
    if plot is not None:
        out.print(f"drawn into {plot}")


def _document(best: Sustainable) -> dict[str, Any]:
    return {
        "batch": best.batch,
        "window_ms": round(1e3 * best.window_s, 9),
        "bound_per_window": best.bound,
        "max_rate_qps": best.rate,
    }


def _curve(latency_ms: str | None, profile: str | None, config: Path | None) -> LatencyCurve:
    if (latency_ms is None) == (profile is None):
        raise ConfigurationError("give either --latency-ms b:ms,… or --profile VARIANT[@DEVICE-TYPE]")
    if latency_ms is not None:
        return _points(latency_ms).curve()
    catalogue, _ = open_catalogue(load(config))
    variant, _, device_type = (profile or "").partition("@")
    found = [p for (v, d), p in catalogue.profiles.items() if v == variant and device_type in ("", d)]
    if not found:
        known = ", ".join(f"{v}@{d}" for v, d in list(catalogue.profiles)[:8])
        raise ConfigurationError(f"no profile {profile!r} in the catalogue; it has {known or 'none'}")
    if len(found) > 1:
        types = ", ".join(p.device_type for p in found)
        raise ConfigurationError(f"{variant} is profiled on several device types; add @ and one of {types}")
    return found[0].curve("p95")


def _points(text: str) -> Profile:
    points: list[BatchLatency] = []
    for part in text.split(","):
        batch, colon, latency = part.partition(":")
        try:
            at, seconds = int(batch), float(latency) / 1e3
        except ValueError:
            at, seconds = 0, 0.0
        if not (colon and 1 <= at <= 4096):
            raise InvalidInputError("--latency-ms", f"{part!r} is not b:ms with a batch from 1 to 4096")
        points.append(BatchLatency(at, seconds, seconds))
    for before, after in pairwise(points):
        if after.batch <= before.batch:
            raise InvalidInputError("--latency-ms", f"batch {after.batch} after {before.batch}; list them ascending")
    return Profile(variant="--latency-ms", device_type="given", points=tuple(points))


def promise_of(mcd: int | None, mk: Sequence[str] | None) -> Promise:
    """What ``--mcd`` and ``--mk`` say. Raises InvalidInputError."""
    return Promise(max_consecutive=mcd, weakly_hard=tuple(_pair(text) for text in mk or ()))


def _pair(text: str) -> WeaklyHard:
    try:
        m, k = (int(part) for part in text.split(","))
    except ValueError:
        raise InvalidInputError("--mk", f"{text!r} is not m,K, two integers such as 5,10") from None
    return WeaklyHard(m, k)


def _seconds(option: str, milliseconds: float, *, least: float | None = None) -> float:
    if not (milliseconds < inf and (milliseconds > 0.0 if least is None else milliseconds >= least)):
        raise InvalidInputError(
            option, f"{milliseconds:g} is not a {'positive' if least is None else 'finite'} number of ms"
        )
    return milliseconds / 1e3


def _shortest(curve: LatencyCurve, others_s: float) -> float:
    return 1e3 * (2 * curve(1) + others_s)


def _against_slo(curve: LatencyCurve, promise: Promise, others_s: float, slo: float) -> list[tuple[float, float]]:
    """(SLO in seconds, rate) up to one and a half times the SLO asked for."""
    steps = 60
    series = []
    for step in range(1, steps * 3 // 2 + 1):
        at = slo * step / steps
        found = max_rate(curve, at, promise, others_s=others_s)
        series.append((at, found.rate if found else 0.0))
    return series


def _show(document: dict[str, Any], series: list[tuple[float, float]], slo: float) -> None:
    table = Table(*document)
    table.add_row(*(f"{value:g}" for value in document.values()))
    out.print(table)
    top = max(rate for _, rate in series)
    out.print("\nrate against the SLO")
    stride = len(series) // _ROWS
    asked = min(range(len(series)), key=lambda i: abs(series[i][0] - slo))
    for at, rate in series[asked % stride :: stride]:  # one of them is the SLO that was asked for
        mark = "[bold]" if at == series[asked][0] else ""
        out.print(f"{mark}{1e3 * at:9.2f} ms  {'█' * round(_BAR * rate / top):<{_BAR}} {rate:9.1f}/s", highlight=False)


def _draw(path: Path, series: list[tuple[float, float]], best: Sustainable, slo: float) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.step([1e3 * at for at, _ in series], [rate for _, rate in series], where="post", color="#2166ac")
    axes.plot([1e3 * slo], [best.rate], "o", color="#d6604d")
    axes.annotate(f"{best.rate:.0f}/s, batch {best.batch}", (1e3 * slo, best.rate), xytext=(6, -12),
                  textcoords="offset points")  # fmt: skip
    axes.set(xlabel="SLO, ms", ylabel="sustainable rate, queries/s", ylim=(0.0, None))
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise ConfigurationError(f"plot {path}: {error.strerror}; give a path that can be written") from error
