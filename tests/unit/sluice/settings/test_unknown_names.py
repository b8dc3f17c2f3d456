"""Names that nobody knows: in the environment, in a settings file, in a trace; said with the nearest that is known."""

from pathlib import Path

import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.sluice.commands.running.replay import trace_spec
from sluicegate.sluice.settings.settings import load


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "SLUICE_PLANER__PERIOD_S",
            "3",
            "SLUICE_PLANER__PERIOD_S sets nothing; did you mean SLUICE_PLANNER__PERIOD_S?",
        ),
        ("SLUICE_HTTP_PORT", "8000", "SLUICE_HTTP_PORT sets nothing; did you mean SLUICE_HTTP__PORT?"),
        ("sluice_brokr", "memory://", "sluice_brokr sets nothing; did you mean SLUICE_BROKER?"),
        ("SLUICE_PLANNER__PERIOD", "3", "planner.period: is unknown; did you mean period_s?"),
        ("SLUICE_XYZXYZ", "3", "SLUICE_XYZXYZ sets nothing"),
    ],
)
def test_a_variable_that_sets_nothing_is_refused_with_the_nearest(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as refused:
        load()
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("SLUICE_APPS", "digits"), ("sluice_planner", "{period_s: 3}"), ("SLUICE_PLANNER__SPARE", "cpu1")],
)
def test_a_variable_that_must_be_json_and_is_not_is_named(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLUICE_PREFIX", value)  # of a text, which may be anything
    with pytest.raises(ConfigurationError) as refused:
        load()
    assert str(refused.value) == f'{name}: give JSON, such as ["digits"] or {{"digits": 1}}'


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLUICE_DATA", "/papers"),
        ("SLUICE_SLO_S__DIGITS", "0.25"),
        # What Kubernetes tells every pod of a service called sluice-http.
        ("SLUICE_HTTP_PORT", "tcp://10.0.0.1:8080"),
        ("SLUICE_HTTP_SERVICE_HOST", "10.0.0.1"),
        ("SLUICE_HTTP_SERVICE_PORT_OIP", "8080"),
        ("SLUICE_HTTP_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ("OTHER_PLANER__PERIOD_S", "3"),
    ],
)
def test_what_is_known_or_not_ours_passes(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    settings = load()
    assert settings.http.port == 8080
    assert settings.slo_s == ({"digits": 0.25} if name.startswith("SLUICE_SLO") else {})


def test_a_settings_file_and_a_trace_are_told_the_same_way(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("worker: {slices: {drain: 3}}\nplaner: {}\n")
    with pytest.raises(ConfigurationError) as refused:
        load(file)
    assert "worker.slices.drain: is unknown; did you mean drain_s?" in str(refused.value)
    assert "planer: is unknown; did you mean planner?" in str(refused.value)
    with pytest.raises(ConfigurationError, match=r"scael: is unknown; did you mean scale\?"):
        trace_spec("generator", None, qps=None, scael=2.0)


def test_an_option_is_above_the_environment_and_that_above_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "settings.yaml").write_text("broker: kafka://file:1\nprefix: file\ndelivery: exactly_once\n")
    monkeypatch.setenv("SLUICE_BROKER", "kafka://environment:1")
    monkeypatch.setenv("SLUICE_PREFIX", "environment")
    found = load(tmp_path / "settings.yaml", broker="kafka://option:1")
    assert (found.broker, found.prefix, found.delivery) == ("kafka://option:1", "environment", "exactly_once")
