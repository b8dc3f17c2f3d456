"""``sluice sustain --system``: the bound of each promise of a system, explained term by term."""

from math import inf
from pathlib import Path
from typing import Any

from rich.table import Table

from sluicegate.domain.errors import ConfigurationError
from sluicegate.sluice.catalogue.open_catalogue import open_catalogue
from sluicegate.sluice.console import out, print_json
from sluicegate.sluice.settings.settings import load
from sluicegate.sluice.system.promise_terms import ROWS, Kept, kept


def show_system(config: Path | None, as_json: bool) -> None:
    """Print what each promise comes to. Raises ConfigurationError where nothing was promised."""
    settings = load(config)
    catalogue, _ = open_catalogue(settings)
    apps = {name: settings.as_set(app) for name, app in catalogue.apps.items()}
    apps = {name: app for name, app in apps.items() if not settings.apps or name in settings.apps}
    served = type(catalogue).of(apps.values(), catalogue.variants.values(), catalogue.profiles.values()).only(apps)
    promised = [name for name, app in apps.items() if app.promise.active]
    if not promised:
        raise ConfigurationError("promises: nothing was promised in the settings; see docs/guide/promises.md")
    devices, hops = settings.all_devices(), settings.admission.hops()
    found = [one for name in promised for one in kept(served, devices, hops, name)]
    if as_json:
        print_json({"promises": [document(one) for one in found]})
        return
    for one in found:
        out.print(_table(one))


def document(one: Kept) -> dict[str, Any]:
    """Ready for JSON, times in ms."""
    share = one.share
    return {
        "app": one.app,
        "slice": one.kind,
        "variant": one.variant,
        "beside": list(one.beside),
        "refused": one.first.refused,
        "batch_rows": share.batch,
        "batch_ms": 1e3 * share.processing_s,
        "batch_usual_ms": 1e3 * one.usual_s,
        "jitter_ms": 1e3 * (share.processing_s - one.usual_s),
        "others_ms": 1e3 * share.others_s,
        "hop_ms": 1e3 * share.hop_s,
        "blocking_ms": None if one.blocking_s == inf else 1e3 * one.blocking_s,
        "window_ms": 1e3 * share.window_s,
        "bound_by_rows": {str(rows): one.bound(rows) for rows in ROWS},
        "rate_qps": one.rate,
        "rate_at_first_qps": one.first_rate,
        "theorem_qps": 0.0 if one.theorem is None else one.theorem.rate,
    }


def _table(one: Kept) -> Table:
    told = document(one)
    beside = f", beside {', '.join(one.beside)}" if one.beside else ", alone"
    shown = Table(title=f"{one.app} on {one.kind}{beside}", show_header=False)
    if told["refused"]:
        shown.add_row("refused", told["refused"], style="red")
        return shown
    shown.add_row("batches", f"{told['batch_rows']} rows of {told['variant']}, {told['batch_usual_ms']:.4g} ms usually")
    shown.add_row("jitter", f"{told['jitter_ms']:.4g} ms more, hardly ever exceeded: {told['batch_ms']:.4g} ms")
    shown.add_row("turns of the others", f"{told['others_ms']:.4g} ms of each cycle")
    shown.add_row("blocking", f"batches of best effort take {told['blocking_ms']:.4g} ms at most")
    shown.add_row("hop", f"{told['hop_ms']:.4g} ms from arrival to the slice")
    for rows, bound in told["bound_by_rows"].items():
        rate = 1e3 * bound / told["window_ms"]
        shown.add_row(f"queries of {rows} rows", f"{bound} in any {told['window_ms']:.4g} ms, {rate:.4g}/s")
    shown.add_row("at first", f"{told['rate_at_first_qps']:.4g}/s, until many batches have shown how long they take")
    shown.add_row("the theorem alone", f"{told['theorem_qps']:.4g}/s, without blocking, jitter, hop and others")
    return shown
