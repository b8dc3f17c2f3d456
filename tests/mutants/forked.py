"""A pytest plugin: the tests are collected once, and each mutant is tried in a fork of the process that knows them all.

A mutant inside a function takes the place of that function's code, wherever it was imported to. One of what runs at
import (defaults, constants, fields) is not tried here, but by ``imported_anew``.
"""

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

import pytest

JOBS = "MUTANTS_JOBS"
"""Variable that names a file, {forks, seconds, jobs: [{number, module, before, after, tests, patience}]}; answers:
beside it. ``patience``: seconds of the processor that a mutant's tests get, but for the last of them."""
_LONGEST = 60.0
"""One that takes longer does not end: no test does, as the code is."""


class NotInPlaceError(Exception):
    """The change is not only inside functions that can be found."""


def replaced(module: ModuleType, before: str, after: str) -> None:
    """Let ``module``, made of ``before``, do what ``after`` says. Raises NotInPlaceError, and nothing is changed."""
    file = str(module.__file__)
    old, new = compile(before, file, "exec"), compile(after, file, "exec")
    found = list(_changed(old, new, module))
    for function, code in found:
        function.__code__ = code


def _changed(old: CodeType, new: CodeType, holder: object) -> Iterator[tuple[FunctionType, CodeType]]:
    if _shell(old) != _shell(new):
        raise NotInPlaceError
    for one, other in zip(_inner(old), _inner(new), strict=True):
        if one == other:
            continue
        if one.co_name.startswith("<"):
            raise NotInPlaceError
        held = vars(holder).get(_mangled(holder, one.co_name))
        if isinstance(held, type):
            yield from _changed(one, other, held)
        elif (function := _function(held)) is not None and function.__code__.co_freevars == other.co_freevars:
            yield function, other
        else:
            raise NotInPlaceError


def _mangled(holder: object, name: str) -> str:
    private = isinstance(holder, type) and name.startswith("__") and not name.endswith("__")
    return f"_{cast(type, holder).__name__.lstrip('_')}{name}" if private else name


def _inner(code: CodeType) -> list[CodeType]:
    return [const for const in code.co_consts if isinstance(const, CodeType)]


def _shell(code: CodeType) -> tuple[Any, ...]:
    """All of it but the code within."""
    consts = [None if isinstance(const, CodeType) else (type(const), const) for const in code.co_consts]
    return code.co_code, consts, code.co_names, code.co_varnames, len(_inner(code))


def _function(held: object) -> FunctionType | None:
    match held:
        case property(fget=found):
            return _function(found)
        case staticmethod() | classmethod():
            return _function(held.__func__)
        case cached_property(func=found):
            return _function(found)
        case FunctionType():
            return _function(held.__wrapped__) if hasattr(held, "__wrapped__") else held
        case _:
            return _function(held.__wrapped__) if hasattr(held, "__wrapped__") else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Instead of the tests: every job."""
    by_name = {item.nodeid: item for item in session.items if item.get_closest_marker("timing") is None}
    answer_each(lambda job: _tried(session, job, by_name))
    return True


def answer_each(tried: Callable[[dict[str, Any]], int]) -> None:
    """Try each job in a fork of its own, some at a time, and answer each by a line {number, status}."""
    asked = json.loads(Path(os.environ[JOBS]).read_text())
    waiting, running = list(reversed(asked["jobs"])), dict[int, tuple[int, float]]()
    with Path(os.environ[JOBS]).with_suffix(".answers").open("w") as answers:
        while waiting or running:
            while waiting and len(running) < asked["forks"]:
                job = waiting.pop()
                pid = os.fork()
                if pid == 0:
                    os._exit(tried(job))
                running[pid] = job["number"], time.monotonic()
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid:
                number, _ = running.pop(pid)
                answers.write(json.dumps({"number": number, "status": os.waitstatus_to_exitcode(status)}) + "\n")
                answers.flush()
                continue
            for pid, (_, began) in running.items():
                if time.monotonic() - began > asked["seconds"]:
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


def _tried(session: pytest.Session, job: dict[str, Any], by_name: dict[str, pytest.Item]) -> int:
    """0: no test noticed; 1: one did; 3: it cannot be tried here."""
    try:
        replaced(sys.modules[job["module"]], job["before"], job["after"])
    except (NotInPlaceError, KeyError):
        return 3
    return int(noticed(session, [by_name[name] for name in job["tests"] if name in by_name], job["patience"]))


def noticed(session: pytest.Session, items: Sequence[pytest.Item], patience: float) -> bool:
    """Whether one of them fails, of those that begin within ``patience`` seconds of the processor."""
    protocol: Callable[..., object] = session.config.hook.pytest_runtest_protocol
    began = time.process_time()
    for item, following in zip(items, [*items[1:], None], strict=True):
        spent = time.process_time()
        if spent - began > patience:
            return False
        resource.setrlimit(resource.RLIMIT_CPU, (int(spent + _LONGEST), -1))
        protocol(item=item, nextitem=following)
        if session.testsfailed:
            session._setupstate.teardown_exact(None)
            return True
    return False
