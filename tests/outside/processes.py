"""Stages in processes of their own, on any broker, for tests that look at them from outside."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from tests.harness import PATIENCE_S, settings_for, toy_catalogue

ROOT = Path(__file__).resolve().parents[2]


_TICK = 0.05


class Process:
    """A stage in a process of its own. ``python -m tests.chaos.faulty POINT up …`` or ``sluice up …``; ``log`` is its
    standard error."""

    def __init__(self, module: list[str], arguments: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.file = folder / "process.log"
        descriptors = environment.pop("DESCRIPTORS", "")
        limited = ["prlimit", f"--nofile={descriptors}:{descriptors}"] if descriptors else []
        with self.file.open("wb") as log:
            self.process = subprocess.Popen(
                [*limited, sys.executable, "-P", "-m", *module, "up", *arguments],
                cwd=ROOT,
                env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self.file.read_text()

    def until(self, condition: Callable[[], Any], within: float = PATIENCE_S) -> Any:
        """What ``condition`` tells, once it is something."""
        end = time.monotonic() + within
        while not (told := condition()):
            assert self.process.poll() is None, self.log
            assert time.monotonic() < end, self.log
            time.sleep(0.05)
        return told

    def terminated(self, within: float) -> int:
        """Its exit code once it was told to end, ``within`` seconds as this process gets them: a machine that is busy
        with something else keeps both waiting."""
        self.process.send_signal(signal.SIGTERM)
        for _ in range(round(within / _TICK)):
            if (code := self.process.poll()) is not None:
                return code
            time.sleep(_TICK)
        raise AssertionError(f"it has not ended within {within:g} s: {self.log}")


@contextmanager
def processes(folder: Path) -> Iterator[Callable[..., Process]]:
    """Starts one, of a point of ``tests.chaos.faulty`` or none, with arguments and environment; all end at the end.

    ``DESCRIPTORS`` in the environment: files that it may have open.
    """
    started: list[Process] = []

    def make(point: str, *arguments: str, **environment: str) -> Process:
        module = ["tests.chaos.faulty", point] if point else ["sluicegate.sluice.main"]
        started.append(Process(module, list(arguments), folder, environment))
        return started[-1]

    try:
        yield make
    finally:
        for one in started:
            if one.process.poll() is None:
                one.process.kill()
                one.process.wait()


def settings_file(url: str, folder: Path, **changes: Any) -> list[str]:
    """Arguments that name settings of a toy system, written into ``folder``."""
    save_catalogue(folder / "catalogue", toy_catalogue(), {})
    free = {"http": {"port": 0}, "web": {"port": 0}}
    settings = settings_for(url, folder, catalogue=folder / "catalogue", **{**free, **changes})
    file = folder / "settings.yaml"
    file.write_text(json.dumps(settings.model_dump(mode="json")))
    return ["--settings", str(file)]
