"""Writes the dashboards beside this file: `python compose/grafana/make_dashboards.py`. A test keeps them the same."""

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "dashboards"
_SOURCE = {"type": "prometheus", "uid": "prometheus"}


def panel(title: str, unit: str, *queries: tuple[str, str], note: str = "", kind: str = "timeseries") -> dict[str, Any]:
    """A graph. ``queries``: (PromQL, legend)."""
    return {
        "type": kind,
        "title": title,
        "description": note,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": {"fillOpacity": 10}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(65 + i), "expr": expression, "legendFormat": legend, "datasource": _SOURCE}
            for i, (expression, legend) in enumerate(queries)
        ],
    }


def dashboard(uid: str, title: str, panels: list[dict[str, Any]]) -> dict[str, Any]:
    """Two panels a row."""
    for i, one in enumerate(panels):
        one["id"] = i + 1
        one["gridPos"] = {"x": 12 * (i % 2), "y": 8 * (i // 2), "w": 12, "h": 8}
    app = {
        "name": "app",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": "label_values(sluice_demand_rows_total, app)", "refId": "app"},
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }
    return {
        "uid": uid,
        "title": title,
        "tags": ["sluicegate"],
        "schemaVersion": 39,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "templating": {"list": [app]},
        "panels": panels,
    }


def queries_board() -> dict[str, Any]:
    """What applications get."""
    of_app = 'app=~"$app"'
    rate = f"rate(sluice_outcomes_total{{{of_app}}}[30s])"
    answered = f'rate(sluice_outcomes_total{{{of_app},outcome="answered"}}[30s])'
    return dashboard(
        "sluice-queries",
        "Sluicegate: queries",
        [
            panel(
                "Demand and goodput", "reqps",
                (f"sum by (app) (rate(sluice_demand_rows_total{{{of_app}}}[30s]))", "demand {{app}}"),
                (f"sum by (app) ({answered})", "on time {{app}}"),
            ),
            panel(
                "Violations", "percentunit",
                (f"1 - sum by (app) ({answered}) / sum by (app) ({rate})", "{{app}}"),
                note="Share of queries not answered within their own SLO.",
            ),
            panel(
                "Effective accuracy", "percentunit",
                (f"sum by (app) (rate(sluice_answers_accuracy_total{{{of_app}}}[30s])) / sum by (app) ({answered})", "{{app}}"),
            ),
            panel(
                "Latency of answers", "s",
                *(
                    (f"histogram_quantile({q}, sum by (app, le) (rate(sluice_query_seconds_bucket{{{of_app}}}[1m])))", f"p{p} {{{{app}}}}")
                    for q, p in ((0.5, 50), (0.99, 99))
                ),
            ),
            panel("Outcomes", "reqps", (f"sum by (outcome, reason) ({rate})", "{{outcome}} {{reason}}")),
            panel(
                "Variant mix", "reqps",
                (f"sum by (app, variant) (rate(sluice_answers_total{{{of_app}}}[30s]))", "{{app}} {{variant}}"),
            ),
            panel("Safe mode", "bool", ("max by (subject) (sluice_safe_mode)", "{{subject}}")),
            panel("Dead letters", "reqps", ("sum by (stage, reason) (rate(sluice_dead_letters_total[1m]))", "{{stage}} {{reason}}")),
        ],
    )  # fmt: skip


def machines_board() -> dict[str, Any]:
    """What devices, plans and processes do."""
    return dashboard(
        "sluice-machines",
        "Sluicegate: devices and plans",
        [
            panel("Utilisation", "percentunit", ("rate(sluice_device_busy_seconds_total[30s])", "{{device}} {{slice}}")),
            panel("Queues", "short", ("sluice_queue_queries", "{{device}} {{slice}}")),
            panel(
                "Mean batch", "short",
                ("rate(sluice_batch_rows_sum[30s]) / rate(sluice_batch_rows_count[30s])", "{{device}} {{variant}}"),
            ),
            panel(
                "Mean batch time", "s",
                ("rate(sluice_batch_seconds_sum[30s]) / rate(sluice_batch_seconds_count[30s])", "{{device}} {{variant}}"),
            ),
            panel(
                "Plan: accuracy and bound", "percentunit",
                ("sluice_plan_objective", "objective"), ("sluice_plan_bound", "bound"), ("sluice_plan_served", "served {{app}}"),
            ),
            panel("Plan: epochs", "short", ("sluice_plan_number", "{{stage}}")),
            panel("Plan: time to make", "s", ("sluice_plan_solve_seconds", "solve")),
            panel("Devices", "short", ("sluice_devices_planned", "planned"), ("sum(sluice_devices_lost_total - (sluice_devices_lost_total offset 5m or sluice_devices_lost_total * 0))", "lost in 5 min")),
            panel("Lag", "short", ("sluice_lag_records", "{{stage}}")),
            panel("In flight", "short", ("sluice_in_flight_records", "{{stage}}")),
            panel("Sent again", "reqps", ("rate(sluice_records_resent_total[1m])", "{{stage}}")),
            panel("Event loop delay", "s", ("sluice_loop_delay_seconds", "{{instance}}")),
            panel("Memory", "bytes", ('process_resident_memory_bytes{job="sluicegate"}', "{{instance}}")),
            panel("CPU", "percentunit", ('rate(process_cpu_seconds_total{job="sluicegate"}[30s])', "{{instance}}")),
        ],
    )  # fmt: skip


def texts() -> dict[str, str]:
    """File name -> content."""
    boards = {"queries.json": queries_board(), "machines.json": machines_board()}
    return {name: json.dumps(board, indent=1) + "\n" for name, board in boards.items()}


if __name__ == "__main__":
    for name, text in texts().items():
        (HERE / name).write_text(text, encoding="utf-8")
