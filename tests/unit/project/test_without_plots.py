"""Without matplotlib, pandas and scikit-learn (as in the image): what serves runs; what draws says what to install."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_BARE = """
import sys
for name in ("matplotlib", "pandas", "sklearn", "joblib"):
    sys.modules[name] = None  # importing it fails as if it were not installed
"""


def bare(code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", _BARE + code, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=500
    )


PLOTTING = (
    ("demo",),
    ("compare", "examples/scenarios/small.yaml"),
    ("simulate", "examples/scenarios/small.yaml", "--report", "never.html"),
    ("sustain", "--slo-ms", "50", "--latency-ms", "1:5,8:10", "--plot", "never.png"),
    ("policy", "show", "never.table"),
)


def test_plots_asked_for_without_matplotlib_are_one_line_before_any_work() -> None:
    code = """
import json
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from sluicegate.sluice.main import run
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    out, err, code = StringIO(), StringIO(), None
    with redirect_stdout(out), redirect_stderr(err):
        try:
            run()
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, out.getvalue(), err.getvalue().strip()]))
"""
    ended = bare(code, json.dumps(PLOTTING))
    told = [json.loads(line) for line in ended.stdout.splitlines()]
    line = "error plots: matplotlib is not installed; pip install 'sluicegate[report]'"
    assert told == [[2, "", line]] * len(PLOTTING), ended.stderr


def test_a_rate_is_found_without_matplotlib_where_nothing_is_drawn() -> None:
    ended = bare(
        "from sluicegate.sluice.main import run; run()", "sustain", "--slo-ms", "50", "--latency-ms", "1:5,8:10"
    )
    assert ended.returncode == 0, ended.stderr


def test_every_role_and_command_is_imported_without_what_only_plots_and_tests_need() -> None:
    code = """
from importlib import import_module
from pkgutil import walk_packages
from sluicegate.sluice.main import register_all
register_all()
for one in ("sluicegate.stages.router", "sluicegate.sluice.system.roles.router"):
    package = import_module(import_module(one).__package__)
    for module in walk_packages(package.__path__, package.__name__ + "."):
        import_module(module.name)
import sluicegate.planner.registry, sluicegate.executors.onnx.onnx_executor
import sluicegate.profiles.demo.build_models, sluicegate.sluice.system.process
from sluicegate.planner.allocation.linear import mathopt
assert mathopt is not None, "plans would be the heuristic's"
"""
    ended = bare(code)
    assert ended.returncode == 0, ended.stderr
