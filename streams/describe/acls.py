"""What each role may do on the broker, and no more: access-control rules for Apache Kafka, from the topics' names.

Rules.
- One principal a role (``User:<user>-<role>``); applications and auditors have roles of their own.
- Everybody may describe the topics, to see that they are there. Only planner and operator may create them: start
  the planner first, or run ``sluice topics --create`` as the operator.
- Nobody but applications, the HTTP front and the operator (who replays dead letters) writes queries; nobody but stages
  writes results; nobody but the planner writes plans.
- Every process has a producer, idempotent as all are, for dead letters at least: who reads may find what it cannot.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sluicegate.streams.topics import Topics

ROLES = (
    *("admission", "router", "worker", "planner", "scaler", "procurement", "sink", "http", "web", "demand"),
    *("client", "operator", "audit"),
)
"""``client``: applications that ask; ``operator``: registers apps, creates topics, replays dead
letters; ``audit``: reads everything."""

_READERS = ("scaler", "procurement", "sink", "http", "web", "demand")
"""Roles that write dead letters only of what cannot be read at all."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One access rule. ``role`` may do ``operations`` on the ``resource`` (topic, group, …) ``name``, or on all that
    begin so."""

    role: str
    resource: str
    name: str
    operations: tuple[str, ...]
    prefixed: bool = False


def rules(topics: Topics, apps: Sequence[str]) -> tuple[Rule, ...]:
    """All rules, for the queries and results of ``apps`` and all devices."""
    prefix = topics.prefix
    queries = [topics.queries(app) for app in apps]
    admitted = [topics.admitted(app) for app in apps]
    results = [topics.results(app) for app in apps]
    work = f"{prefix}.device."
    found = [
        *_on("admission", "Read", [*queries, topics.plan, topics.acks, topics.registry, topics.routers]),
        *_on("admission", "Read", [topics.devices_metrics]),
        *_on("admission", "Write", [*admitted, *results, topics.dead_letters, topics.demand, topics.status]),
        *_on("router", "Read", [*admitted, topics.plan, topics.acks, topics.devices_metrics, topics.registry]),
        *_on("router", "Read", [topics.instances]),
        *_on("router", "Write", [*results, topics.dead_letters, topics.status, topics.turns, topics.routers]),
        Rule("router", "topic", work, ("Write",), prefixed=True),
        *_on("worker", "Read", [*results, topics.plan, topics.policies, topics.turns, topics.registry]),
        *_on("worker", "Read", [topics.instances]),
        *_on("worker", "Write", [*results, *admitted, topics.dead_letters, topics.acks, topics.status]),
        *_on("worker", "Write", [topics.devices_metrics, topics.instances]),
        Rule("worker", "topic", work, ("Read",), prefixed=True),
        *_on("planner", "Read", [*results, topics.plan, topics.policies, topics.demand, topics.devices_metrics]),
        *_on("planner", "Read", [topics.acks, topics.status, topics.registry, topics.devices, topics.instances]),
        *_on("planner", "Write", [*results, *admitted, topics.dead_letters, topics.plan, topics.policies]),
        *_on("planner", "Write", [topics.status, topics.registry, topics.devices, topics.instances]),
        Rule("planner", "topic", work, ("Read",), prefixed=True),
        Rule("planner", "topic", f"{prefix}.", ("Create",), prefixed=True),
        *_on("scaler", "Read", [topics.demand, topics.devices_metrics]),
        *_on("scaler", "Write", [topics.devices]),
        *_on("procurement", "Read", [topics.devices_metrics]),
        *_on("procurement", "Write", [topics.devices, topics.status]),
        *_on("sink", "Read", [*results, topics.registry]),
        *_on("sink", "Write", [topics.status]),
        *_on("http", "Read", [*results, topics.registry]),
        *_on("http", "Write", queries),
        *_on("web", "Read", [*results, topics.plan, topics.status, topics.demand, topics.devices_metrics]),
        *_on("web", "Read", [topics.dead_letters, topics.registry]),
        *_on("planner", "Read", [topics.demand_windows]),
        *_on("demand", "Read", [topics.demand, topics.demand_windows, topics.plan]),
        *_on("demand", "Write", [topics.demand_windows]),
        Rule("demand", "topic", f"{topics.demand_group}-", ("Create", "Read", "Write"), prefixed=True),
        Rule("demand", "group", topics.demand_group, ("Read",)),
        *_on("client", "Read", [*results, topics.status, topics.registry]),
        *_on("client", "Write", queries),
        *_on("operator", "Read", [topics.registry, topics.plan, topics.acks]),
        *_on("operator", "Read", [topics.dead_letters, *queries, *results]),
        *_on("operator", "Write", [topics.registry, *queries]),
        Rule("operator", "topic", f"{prefix}.", ("Create", "AlterConfigs", "Delete"), prefixed=True),
        *(Rule(role, "cluster", "kafka-cluster", ("DescribeConfigs",)) for role in ("planner", "operator")),
        Rule("audit", "topic", f"{prefix}.", ("Read",), prefixed=True),
        *(Rule(role, "topic", topics.dead_letters, ("Write",)) for role in _READERS),
        Rule("admission", "group", topics.admission_group, ("Read",)),
        Rule("router", "group", f"{prefix}.router.", ("Read",), prefixed=True),
        Rule("worker", "group", f"{prefix}.worker.", ("Read",), prefixed=True),
        Rule("planner", "group", f"{prefix}.worker.", ("Read",), prefixed=True),
        Rule("planner", "group", topics.swept_group, ("Read",)),
        Rule("worker", "group", topics.swept_group, ("Describe",)),
        Rule("sink", "group", topics.sink_group, ("Read",)),
        Rule("admission", "transactional-id", topics.admission_group, ("Write",), prefixed=True),
        Rule("router", "transactional-id", f"{prefix}.router.", ("Write",), prefixed=True),
        Rule("worker", "transactional-id", f"{prefix}.worker.", ("Write",), prefixed=True),
        Rule("planner", "transactional-id", f"{prefix}.worker.", ("Write",), prefixed=True),
        *(Rule(role, "cluster", "kafka-cluster", ("IdempotentWrite",)) for role in ("sink", "web", "demand")),
        *(Rule(role, "topic", f"{prefix}.", ("Describe", "DescribeConfigs"), prefixed=True) for role in ROLES),
    ]
    return tuple(sorted(found, key=lambda rule: (ROLES.index(rule.role), rule.resource, rule.name)))


def commands(rules: Iterable[Rule], *, user: str, server: str) -> list[str]:
    """Lines for a shell with Apache Kafka's tools, one a rule."""
    lines = []
    for rule in rules:
        kind = " --resource-pattern-type prefixed" if rule.prefixed else ""
        name = "" if rule.resource == "cluster" else f" {rule.name}"
        asked = " ".join(f"--operation {operation}" for operation in rule.operations)
        lines.append(
            f"kafka-acls.sh --bootstrap-server {server} --command-config admin.properties --add "
            f"--allow-principal User:{user}-{rule.role} {asked} --{rule.resource}{name}{kind}"
        )
    return lines


def as_markdown(rules: Iterable[Rule]) -> str:
    """The reference page."""
    lines = [
        "# Access control on Apache Kafka",
        "",
        "Written by `sluice describe acls --markdown` from the rules in the code, for `digits` and `signals`. A test",
        "keeps page and rules the same, another runs all stages under these rules, a user each, on a broker with",
        "TLS and SCRAM. `sluice describe acls --app NAME --shell` prints commands of `kafka-acls.sh` for your apps.",
        "",
        "One user a role, `<user>-<role>`. Roles `client` (applications), `operator` (registers apps, replays dead",
        "letters) and `audit` (readers) are no stages. A `*` at the end means all names that begin so. The planner",
        "creates topics, so start it first, or run `sluice topics --create` as the operator.",
        "",
        "| role | may | on | name |",
        "|---|---|---|---|",
    ]
    for rule in rules:
        name = f"`{rule.name}{'*' if rule.prefixed else ''}`"
        lines.append(f"| {rule.role} | {', '.join(rule.operations)} | {rule.resource} | {name} |")
    return "\n".join(lines) + "\n"


def _on(role: str, operation: str, names: Iterable[str]) -> list[Rule]:
    return [Rule(role, "topic", name, (operation,)) for name in names]
