"""Mutants of what runs at import: each by a pytest of its own, forked where only others' packages are loaded.

MUTANTS_JOBS=FILE python -m tests.mutants.imported_anew
"""

import contextlib
import importlib
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest
from typing_extensions import override

from tests.mutants.forked import answer_each, noticed

_LOADED = (
    "aiokafka",
    "coverage",
    "hypothesis",
    "numpy",
    "opentelemetry.sdk.trace",
    "prometheus_client",
    "pydantic_settings",
    "pytest_asyncio",
    "rich.progress",
    "scipy.optimize",
    "scipy.sparse",
    "scipy.stats",
    "yaml",
)
"""What takes long to import and is none of ours."""


class _Changed(importlib.machinery.PathFinder):
    """Finds one module, as ``source`` says."""

    def __init__(self, module: str, source: str) -> None:
        self._module, self._source = module, source

    @override
    def find_spec(  # type: ignore[override]  # of an instance; the base has it for the class
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Source(fullname, spec.origin, self._source)
        return spec


class _Source(importlib.machinery.SourceFileLoader):
    def __init__(self, module: str, file: str, source: str) -> None:
        super().__init__(module, file)
        self._source = source

    @override
    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec")


class _Chosen:
    """A pytest plugin: of what is collected only ``tests``, in their order, up to the first that fails."""

    def __init__(self, tests: Sequence[str], patience: float) -> None:
        self._tests, self._patience = tests, patience

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of all tests."""
        by_name = {item.nodeid: item for item in session.items if item.get_closest_marker("timing") is None}
        noticed(session, [by_name[name] for name in self._tests if name in by_name], self._patience)
        return True


def _tried(job: dict[str, Any]) -> int:
    """0: no test noticed; else one did, or the tests could not be imported."""
    sys.meta_path.insert(0, _Changed(job["module"], job["after"]))
    files = [name for name in dict.fromkeys(test.partition("::")[0] for test in job["tests"]) if Path(name).exists()]
    options = ["-q", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--timeout=0"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # the plugins are imported already
    ended = pytest.main([*options, *files], plugins=[_Chosen(job["tests"], job["patience"])]) if files else 0
    return 0 if ended == pytest.ExitCode.NO_TESTS_COLLECTED else int(ended)


def main() -> None:
    """Load what is others', then answer each job."""
    for name in _LOADED:
        with warnings.catch_warnings(), contextlib.suppress(ImportError):
            warnings.simplefilter("ignore")
            importlib.import_module(name)
    answer_each(_tried)


if __name__ == "__main__":
    main()
