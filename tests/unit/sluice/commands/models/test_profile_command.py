"""``sluice profile``: what it refuses before it measures, where models run, and how far long work is."""

import io
import time
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from sluicegate.domain.errors import InvalidInputError
from sluicegate.sluice import console
from sluicegate.sluice.commands.gpu_option import runtime_on
from sluicegate.sluice.main import app as cli
from sluicegate.sluice.main import register_all
from sluicegate.sluice.settings.settings import Settings


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--all", "--gpu", "MIG-../x"), "--gpu: 'MIG-../x'"),
        (("--all", "--gpu", "all"), "--gpu: 'all'"),
        (("--all", "--device-type", "cuda"), "say which one with --gpu"),
        (("--all", "--device-type", "gpu+1g"), "--device-type: 'gpu+1g'; give up to 128"),
        ((), "name the apps to profile, or give --all"),
        (("--all", "--app", "digits"), "name the apps to profile, or give --all"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], told: str
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    register_all()
    found = CliRunner().invoke(cli, ["profile", *arguments])
    assert found.exit_code == 2
    assert told in found.output and found.output.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("gpu", ["0", "12", "GPU-3efe1b24-d1c8-a739-f33f-d117428b1946", "MIG-GPU-1/2/0"])
def test_on_a_gpu_models_run_as_workers_of_these_settings_run_them(gpu: str) -> None:
    settings = Settings.model_validate({"worker": {"cuda": {"memory_limit_mb": 3, "warm_every_batch": False}}})
    runtime = runtime_on(gpu, settings)
    assert runtime is not None
    assert runtime.provider == "cuda" and runtime.environment()["CUDA_VISIBLE_DEVICES"] == gpu
    assert runtime.memory_limit_bytes == 3 << 20 and not runtime.warm_every_size
    assert runtime_on(None, settings) is None
    with pytest.raises(InvalidInputError, match="--gpu"):
        runtime_on(f"{gpu},1", settings)


def test_where_there_is_no_terminal_a_line_now_and_then_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    written, now = io.StringIO(), [500.0]
    monkeypatch.setattr(console, "err", Console(file=written, width=200))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with console.steps("register") as told:
        for second in range(25):
            now[0] = 500.0 + second
            told(f"step [{second}]", second / 25)
    assert written.getvalue().splitlines() == ["register: step [10], 40%", "register: step [20], 80%"]
