"""What comes in stops nothing, measured: ``python -m tests.chaos.front_door [--kafka] [--docs FILE]``.

Runs the tests of these faults, each of which holds its bar, and keeps as a table what they measured.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

_TESTS = (
    "tests/integration/faults/test_poison_queries.py",
    "tests/integration/faults/test_poison_models.py",
    "tests/integration/faults/test_hanging_models.py",
    "tests/integration/faults/test_solver_process.py",
    "tests/unit/stages/test_follower.py",
    "tests/integration/faults/test_full_disk.py",
    "tests/integration/hostile/test_hostile_http.py",
    "tests/integration/hostile/test_hostile_grpc.py",
    "tests/integration/hostile/test_greedy_client.py",
    "tests/simulation/control/test_greedy_clients.py",
    "tests/integration/hostile/test_forged_plans.py",
    "tests/integration/hostile/test_strangers.py",
)
_MEASURE = (
    "carries or given_up or idle or reads_on or room_and_then or half or endless or chunks or 64 or another_app "
    "or made_up or stranger"
)
_BARS = """\
- Poison on one of two devices: on-time answers a second at least 90 % of what one device carries, 2 s later; on both,
  3 s later. 1.13 times what one carries is asked. No input ends more than one executor. Emulated executors under
  virtual time; those of ONNX in real processes.
- Half-open connections, floods, few descriptors, full disks: queries are answered, memory at most twice that of the
  idle process, at most 1 MB of log a minute, the audit balanced. Real processes.
- A client at 20 times capacity: another on its app at most 10 points of on-time share less, on another app at most 2.
  Live stages under virtual time, and simulated.
- Who dies or stands still is noticed within 1 s and replaced within 3 s.
- Records of a stranger: no outage of more than 5 s, also after a restart; plans and fences made up for the very workers
  that there are: nothing lost. Virtual time where embedded.
"""


def run(*, kafka: bool) -> tuple[int, list[tuple[str, str]]]:
    """The tests' exit code, and what was measured, in their order."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "measured"
        chosen = f"({_MEASURE}) and not 2500" + ("" if kafka else " and not kafka")
        command = [sys.executable, "-m", "pytest", "-q", *_TESTS, "-k", chosen]
        code = subprocess.run(command, env={**os.environ, "MEASURED": str(file)}, check=False).returncode
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return code, [(of, told) for of, told in map(json.loads, lines)]


def page(found: Sequence[tuple[str, str]], *, kafka: bool) -> str:
    """As Markdown."""
    when = datetime.now(UTC).date()
    command = "python -m tests.chaos.front_door" + (" --kafka" if kafka else "")
    rows = "\n".join(f"| {of} | {told} |" for of, told in found)
    return (
        "# What comes in stops nothing\n\n"
        f"`{command}`, {when}, {os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}.\n"
        "Each line is of a test that fails where its bar is missed.\n\n"
        f"{_BARS}\n| what came | what came of it |\n|---|---|\n{rows}\n"
    )


def main() -> None:
    """Run; exit 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", action="store_true", help="on an Apache Kafka of its own, too")
    parser.add_argument("--docs", type=Path, help="where the page goes")
    chosen = parser.parse_args()
    code, found = run(kafka=chosen.kafka)
    told = page(found, kafka=chosen.kafka)
    sys.stdout.write(told)
    if chosen.docs is not None and not code:
        chosen.docs.write_text(told, encoding="utf-8")
    raise SystemExit(bool(code))


if __name__ == "__main__":
    main()
