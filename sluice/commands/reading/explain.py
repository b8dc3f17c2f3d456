"""``sluice explain QUERY_ID``: why a query was answered as it was."""

import asyncio
import shlex
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.markup import escape
from rich.table import Table

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.outcome import Outcome, PromiseState
from sluicegate.domain.plan import Placement, Plan
from sluicegate.planner.problems.throughput import throughput
from sluicegate.sluice.audit.result_log import find_results
from sluicegate.sluice.catalogue.open_catalogue import known_catalogue
from sluicegate.sluice.catalogue.run_folders import open_broker
from sluicegate.sluice.console import EXIT_FAILED, JsonOption, err, one_line_errors, out, visible
from sluicegate.sluice.settings.settings import Settings, load
from sluicegate.sluice.system.deployed_gpus import Gpus
from sluicegate.streams.ports import Broker, Record, TopicPartition
from sluicegate.streams.records import codec, control
from sluicegate.streams.topics import Topics

_LISTED = 10


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("explain")(explain)


def explain(
    query_id: Annotated[str, typer.Argument(help="Id of the query.")],
    app: Annotated[str | None, typer.Option("--app", help="Its app, where several have a query of this id.")] = None,
    source: Annotated[
        str | None, typer.Option("--source", help="Its ce_source, where several have asked with this id.")
    ] = None,
    run: Annotated[Path | None, typer.Option(help="Folder of a finished run.")] = None,
    broker: Annotated[str | None, typer.Option(help="Broker to read.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Topic prefix.")] = None,
    settings: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what became of a query: variant, device, plan, policy, times, and what else the plan offered."""
    with one_line_errors():
        chosen = load(settings, prefix=prefix)
        where = open_broker(chosen, run, broker)
        found, plan, passed_over = asyncio.run(_find(where, Topics(chosen.prefix), query_id, app, source))
    if passed_over:
        others = f"passed over {passed_over} record{'s' * (passed_over > 1)} on result topics: damaged, or no outcome"
        err.print(others, markup=False, highlight=False, soft_wrap=True)
    if found is None:
        err.print(f"no outcome of {escape(query_id)} yet; `sluice audit` tells whether it was asked")
        raise typer.Exit(EXIT_FAILED)
    outcome = codec.decode_outcome(found).outcome
    not_hosted = excluded(chosen, outcome, plan)
    if as_json:
        told = {**orjson.loads(codec.outcome_json(found)), **planned(outcome, plan, not_hosted)}
        typer.echo(orjson.dumps(told).decode())
    else:
        out.print(table(outcome, plan, not_hosted))


async def _find(
    broker: Broker, topics: Topics, query_id: str, app: str | None, source: str | None
) -> tuple[Record | None, Plan | None, int]:
    junk: list[Record] = []
    try:
        candidates = await find_results(broker, topics, query_id, app=app, source=source, passed_over=junk.append)
        if source is not None and not candidates:
            others = sorted({key.source for key in await find_results(broker, topics, query_id, app=app)})
            if others:
                some = ", ".join(map(shlex.quote, others[:_LISTED]))
                raise InvalidInputError("--source", f"{source!r:.80} has not asked {query_id}; who has: {some}")
        if len(candidates) > 1:
            listed = "; ".join(
                f"--app {key.app} --source {shlex.quote(key.source)}" for key in sorted(candidates)[:_LISTED]
            )
            more = f" and {len(candidates) - _LISTED} more" if len(candidates) > _LISTED else ""
            raise InvalidInputError("QUERY_ID", f"{query_id} names {len(candidates)} queries: give {listed}{more}")
        found = next(iter(candidates.values()), None)
        epoch = codec.decode_outcome(found).outcome.epoch if found else None
        plan = await _plan_of(broker, topics, epoch) if epoch else None
        return found, plan, len(junk)
    finally:
        await broker.close()


async def _plan_of(broker: Broker, topics: Topics, epoch: tuple[int, int]) -> Plan | None:
    """The plan of ``epoch``, where compaction has left it."""
    if topics.plan not in await broker.admin().topics():
        return None
    partition = TopicPartition(topics.plan, 0)
    consumer = broker.consumer(partitions=[partition], start_at="beginning")
    await consumer.start()
    try:
        end = (await consumer.end_offsets([partition]))[partition]
        while await consumer.position(partition) < end:
            for record in await consumer.get_many(wait=0.5):
                plan = _plan_in(record)
                if plan is not None and tuple(plan.epoch) == tuple(epoch):
                    return plan
        return None
    finally:
        await consumer.stop()


def _plan_in(record: Record) -> Plan | None:
    try:
        return control.decode_plan(record.value) if record.value is not None else None
    except InvalidInputError:
        return None  # anybody can write there


def excluded(settings: Settings, outcome: Outcome, plan: Plan | None) -> list[tuple[str, str]]:
    """Variants of the app that the plan did not host, and why, as far as a catalogue is at hand: (name, reason)."""
    known = known_catalogue(settings)
    if known is None or plan is None or outcome.app not in known.apps:
        return []
    catalogue = Gpus(settings).profiled(known)
    hosted = {v for p in plan.of_app(outcome.app) for v in p.variants}
    least = min((catalogue.variants[v].accuracy for v in hosted if v in catalogue.variants), default=0.0)
    demand = plan.demand.get(outcome.app, 0.0)
    kinds = {d.type for d in settings.all_devices()}
    app = settings.as_set(catalogue.apps[outcome.app])
    found = []
    for variant in catalogue.of_app(outcome.app):
        if variant.name in hosted:
            continue
        rates = [
            throughput(profile, app.slo / 2, quantile=settings.planner.quantile, rows=app.max_rows).qps
            for (name, kind), profile in catalogue.profiles.items()
            if name == variant.name and kind in kinds
        ]
        accuracy = f"accuracy {100 * variant.accuracy:.2f} %"
        if not any(rates):
            found.append((variant.name, f"{accuracy}: no batch of it fits within half the SLO here"))
        elif variant.accuracy <= least:
            found.append((variant.name, f"{accuracy}: not more accurate than what was hosted"))
        else:
            why = f"a device carries {max(rates):.0f} rows/s of it; {demand:.0f} rows/s were planned for, plus headroom"
            found.append((variant.name, f"{accuracy}: {why}"))
    return found


def _chosen(placement: Placement, outcome: Outcome) -> bool:
    return placement.device == outcome.device and outcome.slice in {None, placement.slice}


def planned(outcome: Outcome, plan: Plan | None, not_hosted: list[tuple[str, str]]) -> dict[str, Any]:
    """What the plan of a query offered, as plain values."""
    offered = [
        {
            "device": placement.device,
            "slice": placement.slice,
            "variants": placement.variants,
            "share": placement.share,
            "chosen": _chosen(placement, outcome),
        }
        for placement in (plan.of_app(outcome.app) if plan is not None else ())
    ]
    return {
        "plan": {"reason": plan.reason, "placements": offered} if plan is not None else None,
        "not_hosted": [{"variant": name, "why": why} for name, why in not_hosted],
    }


def promised(state: PromiseState) -> str:
    """How its stream stood after it, in words: what was promised, what was spent of it, what is left."""
    pairs = [f"at most {m} of {k}" for m, k in state.weakly_hard]
    if state.max_consecutive is not None:
        pairs.append(f"at most {state.max_consecutive} in a row")
    told = f"{', '.join(pairs)} missed; {state.misses} of {state.queries} were, {state.mcd} in a row at most"
    if state.left:
        told += f"; {min(n for _, n in state.left)} more may be now"
    return f"{told}; safe mode was announced" if state.safe_mode else told


def _ahead(outcome: Outcome) -> str:
    """What is to be said of an arrival further behind the end than a time to the millisecond can be off."""
    ahead = 1e3 * (outcome.arrival - outcome.at)
    return f"; its producer's clock is at least {ahead:.0f} ms ahead" if ahead > 1.0 else ""


def table(outcome: Outcome, plan: Plan | None, not_hosted: list[tuple[str, str]]) -> Table:
    """The story of a query as a terminal table."""
    shown = Table(title=f"Query {escape(outcome.query_id)}", show_header=False)
    rows: list[tuple[str, str]] = [
        ("outcome", "answered late" if outcome.late else outcome.kind.value),
        ("app", f"{outcome.app} ({outcome.query_class.value})"),
        ("asked by", outcome.source or "not told"),
        ("deadline", f"{1e3 * (outcome.deadline - outcome.arrival):.1f} ms after arrival"),
        ("ended", f"{1e3 * outcome.took:.1f} ms after arrival{_ahead(outcome)}"),
    ]
    if outcome.reason:
        rows.append(("reason", f"{outcome.reason}{': ' + outcome.detail if outcome.detail else ''}"))
    if outcome.variant:
        rows += [
            ("variant", f"{outcome.variant}, accuracy {100 * outcome.accuracy:.2f} %"),
            ("batch", f"{outcome.batch_size} rows by {outcome.policy}"),
            (
                "times",
                f"queued {1e3 * outcome.queue_s:.1f} ms, batch {1e3 * outcome.batch_s:.1f} ms, "
                f"model {1e3 * outcome.execution_s:.1f} ms",
            ),
        ]
    if outcome.promise is not None:
        rows.append(("promise", promised(outcome.promise)))
    if outcome.device:
        rows.append(("device", f"{outcome.device}/{outcome.slice}"))
    if outcome.epoch:
        rows.append(("plan", f"epoch {outcome.epoch[0]}.{outcome.epoch[1]}"))
    if plan is not None:
        rows.append(("planned because", plan.reason))
        for placement in plan.of_app(outcome.app):
            text = (
                f"{'+'.join(placement.variants)} on {placement.device}/{placement.slice}, share {placement.share:.0%}"
            )
            rows.append(("chosen" if _chosen(placement, outcome) else "alternative", text))
    rows += [("not hosted", f"{name}, {why}") for name, why in not_hosted]
    for name, text in rows:
        shown.add_row(name, escape(visible(text)))
    return shown
