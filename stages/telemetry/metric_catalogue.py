"""Every metric there is, once: its name, unit, labels, meaning, and what to do when it looks wrong.

Rules.
- What is not listed here cannot be counted: ``sluicegate.stages.telemetry.metrics`` refuses other names and other
  numbers of labels.
- Names end in their unit; counters get ``_total`` when they are exported, as Prometheus has it.
- Labels take few values each (apps, devices, variants, stages): never a query id, never what a client wrote.
- ``docs/reference/metrics.md`` is written from this list.
"""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. ``told_by``: stages that have it; ``remedy``: what to do; ``buckets``: upper bounds, ascending."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    told_by: str
    meaning: str
    remedy: str
    buckets: tuple[float, ...] = ()

    @property
    def exported(self) -> str:
        """Its name on the wire."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


_SENDERS = "admission, router, worker, planner, sink, scaler, procurement, http, grpc"


def _counter(name: str, unit: str, labels: tuple[str, ...], told_by: str, meaning: str, remedy: str) -> Metric:
    return Metric(
        name=name, kind=Kind.COUNTER, unit=unit, labels=labels, told_by=told_by, meaning=meaning, remedy=remedy
    )


def _gauge(name: str, unit: str, labels: tuple[str, ...], told_by: str, meaning: str, remedy: str) -> Metric:
    return Metric(name=name, kind=Kind.GAUGE, unit=unit, labels=labels, told_by=told_by, meaning=meaning, remedy=remedy)


def _histogram(
    name: str, unit: str, labels: tuple[str, ...], told_by: str, meaning: str, remedy: str, buckets: tuple[float, ...]
) -> Metric:
    return Metric(
        name=name,
        kind=Kind.HISTOGRAM,
        unit=unit,
        labels=labels,
        told_by=told_by,
        meaning=meaning,
        remedy=remedy,
        buckets=buckets,
    )


CATALOGUE: tuple[Metric, ...] = (
    _counter(
        "sluice_demand_rows", "rows", ("app",), "admission",
        "Rows of queries that came in, whatever became of them: the demand that plans are made for.",
        "Flat at 0 while producers write: look at sluice_lag_records of admission and at dead letters.",
    ),
    _counter(
        "sluice_queries_admitted", "queries", ("app",), "admission",
        "Queries let in. Demand less this is rejected, expired or a duplicate.",
        "Falls behind demand: look at sluice_outcomes_total by reason.",
    ),
    _counter(
        "sluice_outcomes", "queries", ("app", "stage", "outcome", "reason"), "admission, router, worker, planner",
        "Terminal outcomes written, one a query: answered, late, expired, dropped, rejected or failed, and why.",
        "Goodput is the rate of answered. Much late or expired: too little capacity or too high a guard (tuning). "
        "dropped/hopeless: overload. rejected/over_share: a client floods. "
        "failed/model_error: a broken model. failed/executor_killed: "
        "a query that ends executors, by its id in the outcome. rejected/invalid: a producer's mistake. "
        "failed/result_too_large: raise max.message.bytes of the results topic, answer with less, or set "
        "objects.results. failed/object_unreadable: what a query refers to cannot be had, its detail says why.",
    ),
    _counter(
        "sluice_answers", "queries", ("app", "device", "variant"), "worker",
        "Queries answered on time, by the variant and device that answered: the variant mix.",
        "Shifts to fast variants under load and back after it. Stuck on fast ones at low load: the planner is gone.",
    ),
    _counter(
        "sluice_answers_accuracy", "accuracy", ("app",), "worker",
        "Sum of the profiled accuracy (0..1) of on-time answers; its rate over that of answered is the effective one.",
        "Low effective accuracy means overload: add devices, or ask for less.",
    ),
    _histogram(
        "sluice_query_seconds", "seconds", ("app",), "worker",
        "From arrival at the broker to the answer.",
        "Compare its p99 with the SLO; where the queue is most of it, capacity is short, else the hops are slow.",
        _SECONDS,
    ),
    _histogram(
        "sluice_queue_seconds", "seconds", ("app", "device"), "worker",
        "Of answered queries: from arrival in the worker's queue to the start of their batch.",
        "Near the SLO on one device only: its profile is wrong (sluice profile); on all: capacity is short.",
        _SECONDS,
    ),
    _counter(
        "sluice_dead_letters", "records", ("stage", "reason"), "admission, router, worker, sink, planner, reader",
        "Records that could not be understood, or be read (unreadable), or whose id was seen before (duplicate_id).",
        "Read <prefix>.dead-letters: headers __dlq.errors.* name field, reason and the record's place.",
    ),
    _histogram(
        "sluice_batch_rows", "rows", ("device", "variant"), "worker",
        "Rows in each batch that was run.",
        "Always 1 under load: SLO too tight for batching, or the policy is eager; see tuning.",
        _ROWS,
    ),
    _histogram(
        "sluice_batch_seconds", "seconds", ("device", "variant"), "worker",
        "From the start of a batch to its answers, the model's execution and the call to it.",
        "Above the profile: the machine is shared or throttled; profile again (sluice profile).",
        _SECONDS,
    ),
    _counter(
        "sluice_batch_failures", "batches", ("device", "variant"), "worker",
        "Batches that failed; their queries are then run one by one, so that a bad one fails alone.",
        "Any steady rate: read the outcomes' detail; the model or an input breaks it.",
    ),
    _counter(
        "sluice_executor_restarts", "restarts", ("device",), "worker",
        "Times a device's executor process died, or was killed because a batch hung, and was started again.",
        "Out of memory: host fewer variants, set memory_bytes. With batch failures: a model hangs on some input.",
    ),
    _gauge(
        "sluice_queue_queries", "queries", ("device", "slice"), "worker",
        "Queries that wait or run on a slice.",
        "Grows without end: nothing is dropped in time; choose a batching policy that drops.",
    ),
    _counter(
        "sluice_device_busy_seconds", "seconds", ("device", "slice"), "worker",
        "Time that batches ran; its rate is the utilisation (0..1).",
        "Near 1 on all devices: add one. Far apart between devices: look at the plan's shares.",
    ),
    _gauge(
        "sluice_variant_loaded", "boolean", ("device", "slice", "variant"), "worker",
        "1 for each variant that is ready on a slice.",
        "Missing after a plan: look at sluice_variant_loads_total{ok=\"no\"}.",
    ),
    _counter(
        "sluice_variant_loads", "loads", ("device", "variant", "ok"), "worker",
        "Variants loaded, and loads that failed (ok=no).",
        "Failures: read the worker's log; the model's file is missing, or memory is.",
    ),
    _counter(
        "sluice_declared_dead", "times", ("device",), "worker",
        "Times this worker found that the planner took it for dead; it gave up its queries and joined again.",
        "The process was stopped for longer than device_timeout: overcommitted machine, swap, or a clock that jumped.",
    ),
    _counter(
        "sluice_queries_sent_back", "queries", ("device",), "worker",
        "Queries of apps that are not served here any more, given back to the routers.",
        "A few at each plan change are right. Steady: router and worker follow different plans.",
    ),
    _gauge(
        "sluice_gpu_utilisation", "ratio", ("device",), "worker",
        "Share of time that kernels ran on the GPU, as it measures it (0..1); a GPU in MIG mode does not say.",
        "Low beside a high rate of sluice_device_busy_seconds_total: batches are small, or wait for the CPU.",
    ),
    _gauge(
        "sluice_gpu_memory_bytes", "bytes", ("device",), "worker",
        "Memory in use on the GPU, all slices together.",
        "Near its size: host fewer variants, or set worker.cuda.memory_limit_mb.",
    ),
    _gauge(
        "sluice_gpu_temperature_celsius", "degrees", ("device",), "worker",
        "Temperature of the GPU.",
        "Above 85: clocks fall and latencies with them exceed their profiles; look at its cooling.",
    ),
    _gauge(
        "sluice_gpu_ecc_errors", "errors", ("device",), "worker",
        "Uncorrected memory errors since the driver was loaded.",
        "Any: take the GPU out and have it tested.",
    ),
    _counter(
        "sluice_gpu_cuts", "cuts", ("device", "ok"), "worker",
        "Times that a GPU was cut into other slices, and cuts that failed (ok=no), after which it kept what it had.",
        "Failures: the status topic and the worker's log say why; rights and processes of others are the usual causes.",
    ),
    _gauge(
        "sluice_slice_interference", "ratio", ("device", "slice"), "worker",
        "Measured over profiled time of batches on a slice, averaged, while it stays above 1.25; 0 otherwise.",
        "One slice: something else runs there. All slices that host a variant: its profile is wrong; profile it again.",
    ),
    _gauge(
        "sluice_plan_term", "term", ("stage",), "router, worker, planner",
        "Term of the newest plan known here; a new planner begins a new one.",
        "Differs between stages for more than seconds: that stage does not read the plan topic.",
    ),
    _gauge(
        "sluice_planner_leading", "boolean", (), "planner",
        "1 while this planner holds the lease, 0 while it stands by.",
        "Sum over all planners below 1 for longer than planner.lease_s: none is running, or none reaches the broker.",
    ),
    _gauge(
        "sluice_plan_number", "number", ("stage",), "router, worker, planner",
        "Number of the newest plan within its term; on routers the one in force.",
        "A router behind the planner for long: a device does not acknowledge; see sluice_variant_loads_total.",
    ),
    _counter(
        "sluice_plans_published", "plans", (), "planner",
        "Plans published.",
        "None for minutes while demand changes: the solver hangs or the planner is gone.",
    ),
    _gauge(
        "sluice_plan_solve_seconds", "seconds", (), "planner",
        "What the newest plan took to make.",
        "Near planner.period_s: fewer variants, or another planner by name.",
    ),
    _counter(
        "sluice_solver_restarts", "restarts", (), "planner",
        "Times the process that solves for plans ended, stood still or was ended, and was started again.",
        "Now and then: out of memory. Often: read the planner's log; try another planner.name.",
    ),
    _gauge(
        "sluice_plan_objective", "accuracy", (), "planner",
        "Mean over served queries of the accuracy that the newest plan promises, over that of the app's best (0..1).",
        "Falls with load; far below sluice_plan_bound: the search ended early.",
    ),
    _gauge(
        "sluice_plan_bound", "accuracy", (), "planner",
        "Upper bound on the objective of any plan (0..1).",
        "The gap to the objective is what a longer search could win at most.",
    ),
    _gauge(
        "sluice_plan_served", "ratio", ("app",), "planner",
        "Fraction of the demand that the newest plan can serve.",
        "Below 1: overload even with the fastest variants; add devices, or let admission reject.",
    ),
    _gauge(
        "sluice_plan_demand_rows", "rows/s", ("app",), "planner",
        "Demand that the newest plan is made for.",
        "Far from the rate of sluice_demand_rows_total for long: the planner hears no demand.",
    ),
    _gauge(
        "sluice_predicted_misses", "rows/s", ("app",), "planner",
        "Rows a second that the newest plan cannot serve in time, whatever the variants: to scale workers by.",
        "Above 0: too few devices for the demand, even with the fastest variants; the lag shows it only later.",
    ),
    _gauge(
        "sluice_workers_wanted", "workers", ("app",), "scaler",
        "Workers that an app should have, by its load, by the forecast, and by what was wanted within the keep-alive.",
        "Above the number that serve for long: no spare device is left, or workers cannot be started (its log).",
    ),
    _gauge(
        "sluice_devices_serving", "devices", (), "scaler",
        "Devices that serve or are about to, spare ones included.",
        "Moves up and down all the time: a longer scaling.keep_alive_s.",
    ),
    _counter(
        "sluice_worker_changes", "workers", ("device", "change"), "scaler",
        "Workers of spare devices that were started, ended, or could not be (failed).",
        "failed: the driver's error is in the log.",
    ),
    _counter(
        "sluice_spot_notices", "notices", ("device",), "procurement",
        "Notices that a spot instance will be taken back.",
        "Many: another region or instance type, or spot: false for some of the devices.",
    ),
    _gauge(
        "sluice_cost_money", "money", ("kind",), "procurement",
        "What instances have cost since the start, by kind (spot, on_demand), at the prices of the settings.",
        "on_demand grows while devices are set as spot: spot is refused.",
    ),
    _gauge(
        "sluice_plan_share", "ratio", ("app", "device", "slice", "variants"), "planner",
        "Share of an app's demand that the newest plan gives to a slice, and the variants there.",
        "One device has it all while others idle: their heartbeats are not heard.",
    ),
    _gauge(
        "sluice_devices_planned", "devices", (), "planner",
        "Devices that the newest plan counts on.",
        "Fewer than there are: a worker is gone or takes longer than device_timeout between heartbeats.",
    ),
    _counter(
        "sluice_devices_lost", "devices", ("device",), "planner",
        "Times a device was declared dead and its queries were moved to others.",
        "See the runbook: process gone, machine stalled, or broker unreachable from there.",
    ),
    _gauge(
        "sluice_safe_mode", "boolean", ("subject", "stage"), "router, worker, planner",
        "1 while a promise on misses may break, announced before it does.",
        "Overload or a lost device: see promises and the runbook.",
    ),
    _gauge(
        "sluice_misses_left", "queries", ("app", "device"), "worker",
        "How many of the next queries of a stream with a promise may be missed at once; of the stream served last.",
        "Near 0 for long: the load is near what is announced; give the app more devices or a faster variant.",
    ),
    _counter(
        "sluice_announcements", "announcements", ("stage", "state"),
        "admission, router, worker, planner, sink, procurement",
        "What was said on the status topic, by state.",
        "Read <prefix>.control.status for subject and reason.",
    ),
    _counter(
        "sluice_records_read", "records", ("stage",), "admission, router, worker, sink",
        "Records read from the stage's topics.",
        "Its rate against that of the stage before tells where records wait.",
    ),
    _counter(
        "sluice_records_sent", "records", ("stage",), _SENDERS,
        "Records handed to the producer.",
        "Compare with sluice_records_resent_total.",
    ),
    _counter(
        "sluice_records_resent", "records", ("stage",), _SENDERS,
        "Records sent again because the broker did not acknowledge.",
        "Any steady rate: the broker is overloaded or away.",
    ),
    _gauge(
        "sluice_in_flight_records", "records", ("stage",), "admission, router, worker, sink",
        "Records read whose consequences are not all acknowledged: the most that is answered twice after a crash.",
        "At its limit (4000): the stage after it, or the broker, is the bottleneck.",
    ),
    _gauge(
        "sluice_unacknowledged_records", "records", ("stage",), _SENDERS,
        "Records sent that the broker has not acknowledged yet.",
        "Grows: the broker is slow or away.",
    ),
    _gauge(
        "sluice_lag_records", "records", ("stage",), "admission, router, worker, sink",
        "Records on the stage's topics that it has not read yet, looked up every few seconds.",
        "Grows on a router or admission: start another; on a worker: capacity; on the sink: disk.",
    ),
    _gauge(
        "sluice_held_queries", "queries", ("app",), "router",
        "Queries that wait for a first plan; they expire by a timer.",
        "Above 0 for long: no plan, or no device has acknowledged one.",
    ),
    _counter(
        "sluice_outcomes_stored", "outcomes", (), "sink",
        "Outcomes written to outcomes.jsonl.",
        "Behind the rate of sluice_outcomes_total: the disk.",
    ),
    _counter(
        "sluice_http_requests", "requests", ("stage", "status"), "http, grpc, web, metrics",
        "Requests answered, by status.",
        "400: wrong, or no HTTP. 401: a wrong token. 404: unknown. 413, 414, 431: too large. 429: over a rate limit, a "
        "client's share or the rate that devices sustain. 500: failed. 502: the object store does not give the answer. "
        "503: overload. 504: expired.",
    ),
    _gauge(
        "sluice_http_waiting_requests", "requests", ("stage",), "http, grpc",
        "Requests that wait for their outcome.",
        "At its limit further ones get 503.",
    ),
    _gauge(
        "sluice_loop_delay_seconds", "seconds", (), "every process",
        "How late the event loop woke at the last look: time that deadlines lose to other work.",
        "Above the guard (worker.guard_s): run fewer stages in this process, or give it a core of its own.",
    ),
    _gauge(
        "sluice_build_info", "boolean", ("version", "roles"), "every process",
        "1; its labels say what runs here.",
        "Two versions at once are fine during a rolling upgrade.",
    ),
)  # fmt: skip

BY_NAME = {metric.name: metric for metric in CATALOGUE}


def as_markdown() -> str:
    """The reference page."""
    lines = [
        "# Metrics",
        "",
        "Written by `sluice describe metrics --markdown` from the catalogue in the code; a test keeps them alike. Once",
        "`metrics.port` (`SLUICE_METRICS__PORT`) is set, each process tells its metrics at `/metrics`,",
        "besides `process_*` and `python_info` of the client library. Outcomes are `answered` (on time), `late`,",
        "`expired`, `dropped`, `rejected`, `failed`.",
        "",
        "| metric | kind, unit | labels | told by |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| [`{m.exported}`](#{m.exported}) | {m.kind}, {m.unit} | {', '.join(m.labels) or '-'} | {m.told_by} |"
        for m in CATALOGUE
    ]
    for m in CATALOGUE:
        lines += ["", f"### {m.exported}", "", m.meaning, "", f"What to do: {m.remedy}"]
    return "\n".join(lines) + "\n"
