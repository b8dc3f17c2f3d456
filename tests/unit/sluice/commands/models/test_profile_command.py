"""``sluice profile``: what it refuses before it measures, where models run, and how far long work is."""

import io
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.profile import Profile
from sluicegate.executors.onnx.runtime_options import Runtime
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import load_catalogue, load_origin, save_catalogue
from sluicegate.profiles.catalogue.registered_apps import Registered, merged
from sluicegate.sluice import console
from sluicegate.sluice.commands.gpu_option import runtime_on, type_of
from sluicegate.sluice.commands.models.profile import keep
from sluicegate.sluice.main import app as cli
from sluicegate.sluice.main import register_all
from sluicegate.sluice.settings.settings import Settings, settings_of
from tests.harness import toy_catalogue


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--all", "--gpu", "MIG-../x"), "--gpu: 'MIG-../x'"),
        (("--all", "--gpu", "all"), "--gpu: 'all'"),
        (("--all", "--device-type", "cuda"), "say which one with --gpu"),
        (("--all", "--device-type", "cpu4", "--gpu", "0"), "--device-type: cpu4 is a processor; leave out --gpu"),
        (("--all", "--device-type", "cpu", "--gpu", "0"), "--device-type: cpu is a processor; leave out --gpu"),
        (("--all", "--device-type", "cpu257"), "--device-type: cpu257; give 1 to 256 threads"),
        (("--all", "--device-type", "cpu0"), "--device-type: cpu0; give 1 to 256 threads"),
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


@pytest.mark.parametrize(
    ("given", "gpu", "kind", "threads"),
    [
        (None, None, "cpu", 1),
        ("cpu", None, "cpu", 1),
        ("cpu4", None, "cpu4", 4),
        ("cpu256", None, "cpu256", 256),
        ("cpu-east", None, "cpu-east", 1),
        (None, "0", "cuda", 1),
        ("a100:3g", "0", "a100:3g", 1),
    ],
)
def test_what_is_measured_for_a_type_of_so_many_threads_runs_on_them(
    given: str | None, gpu: str | None, kind: str, threads: int
) -> None:
    runtime = runtime_on(gpu, Settings(), given)
    assert type_of(given, runtime) == kind
    assert (runtime or Runtime()).threads == threads
    assert (runtime or Runtime()).provider == ("cpu" if gpu is None else "cuda")


def test_where_there_is_no_terminal_a_line_now_and_then_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    written, now = io.StringIO(), [500.0]
    monkeypatch.setattr(console, "err", Console(file=written, width=200))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with console.steps("register") as told:
        for second in range(25):
            now[0] = 500.0 + second
            told(f"step [{second}]", second / 25)
    assert written.getvalue().splitlines() == ["register: step [10], 40%", "register: step [20], 80%"]


def loads(folder: Path) -> dict[str, float]:
    return {name: profile.load for (name, _), profile in load_catalogue(folder).profiles.items()}


def slower(catalogue: Catalogue, load: float) -> list[Profile]:
    return [replace(profile, load=load) for profile in catalogue.profiles.values()]


def test_what_is_measured_of_the_demos_models_beside_registered_ones_is_kept_with_the_demos(tmp_path: Path) -> None:
    settings = settings_of("test", {"home": tmp_path})
    mine, demo = toy_catalogue(("mine",)), toy_catalogue(("digits", "signals"))
    registered = Registered(tmp_path).folder
    save_catalogue(registered, mine, {})
    save_catalogue(tmp_path / "catalogue", demo, {}, {"builder": "7"})
    both = merged([mine, demo])
    assert keep(settings, both, registered, slower(both, 0.5)).profiles.keys() == both.profiles.keys()
    assert set(loads(registered).values()) == set(loads(tmp_path / "catalogue").values()) == {0.5}
    assert loads(registered).keys() == {"mine-v0", "mine-v1", "mine-v2"}
    assert load_origin(tmp_path / "catalogue") == {"builder": "7"}
    keep(settings, mine, registered, slower(mine, 0.7))
    assert (set(loads(registered).values()), set(loads(tmp_path / "catalogue").values())) == ({0.7}, {0.5})


def test_of_two_that_profile_at_once_each_keeps_what_the_other_measured(tmp_path: Path) -> None:
    read = toy_catalogue(("east", "west"))
    save_catalogue(tmp_path / "own", read, {})
    settings = settings_of("test", {"home": tmp_path, "catalogue": tmp_path / "own"})
    for app, load in (("east", 0.5), ("west", 0.7)):
        keep(settings, read, tmp_path / "own", slower(read.only({app}), load))
    assert {loads(tmp_path / "own")[name] for name in ("east-v0", "west-v0")} == {0.5, 0.7}
