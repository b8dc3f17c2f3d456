"""Options that would do nothing beside others are refused at once: by their name, by that of the other, and with what
to do."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluicegate.sluice.main import app, register_all

SCENARIO = str(Path(__file__).parents[3] / "examples" / "scenarios" / "small.yaml")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["sustain", "--system", "--mcd", "2"], "--mcd: means nothing with --system; leave it out"),
        (["sustain", "--system", "--slo-ms", "20"], "--slo-ms: means nothing with --system; leave it out"),
        (["sustain", "--slo-ms", "20", "--latency-ms", "8:10", "--settings", "pyproject.toml"],
         "--settings: means nothing with --latency-ms, which no catalogue is needed for; leave it out"),
        (["replay", "pyproject.toml", "--format", "generator", "--into", "kafka://127.0.0.1:1"],
         "TRACE pyproject.toml: means nothing with --format generator; leave out --format"),
        (["audit", "runs/a b", "--broker", "kafka://127.0.0.1:1"],
         "--broker: means nothing with a run's folder (runs/a b), whose topics are read; leave one of the two out"),
        (["results", "run", "--broker", "kafka://127.0.0.1:1"], "--broker: means nothing with a run's folder (run)"),
        (["explain", "q", "--run", "r", "--broker", "memory://"], "--broker: means nothing with a run's folder (r)"),
        (["dead-letters", "list", "run", "--broker", "memory://"], "--broker: means nothing with a run's folder (run)"),
        (["topics", "--yes"], "--yes: means nothing without --prune; leave it out"),
        (["topics", "--user", "ann"], "--user: means nothing without --strimzi CLUSTER; leave it out"),
        (["infer", "--app", "a", "--input", "pyproject.toml", "--sample", "3", "--broker", "kafka://127.0.0.1:1"],
         "--sample: means nothing with --input, which is what is sent; leave it out"),
        (["compare", SCENARIO, "--live", "--seeds", "3"], "--seeds: means nothing with --live; it runs the scenario"),
        (["compare", SCENARIO, "--live", "--jobs", "2"], "--jobs: means nothing with --live; it runs the scenario"),
        (["compare", SCENARIO, "--loads", "2"], "--loads: means nothing without --live; --set traces.scale=X changes"),
    ],
)  # fmt: skip
def test_an_option_that_would_do_nothing_is_refused(asked: list[str], said: str) -> None:
    register_all(asked[0])
    ended = CliRunner().invoke(app, asked)
    assert (ended.exit_code, ended.stderr[: len("error ")]) == (2, "error "), (ended.exception, ended.output)
    assert said in ended.stderr
