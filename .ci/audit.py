"""Known weaknesses of what is installed: `requirements.lock` is asked of a vulnerability service, where one answers.

Exit code 1 where a weakness is known, 0 where none is; 0 too, and said so, where nothing could be asked (offline).
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 120.0


def verdict(report: dict[str, Any] | None, problem: str = "") -> tuple[int, str]:
    """Exit code and what to say of pip-audit's JSON; None: it gave none."""
    if report is None:
        return 0, f"dependency audit SKIPPED: {problem or 'pip-audit gave no report'}"
    listed = report["dependencies"]
    asked = [one for one in listed if "skip_reason" not in one]
    if not asked:
        return 0, f"dependency audit SKIPPED: no vulnerability service knows any of {len(listed)} packages (offline?)"
    weak = [one for one in asked if one["vulns"]]
    lines = [
        f"  {one['name']} {one['version']}: {weakness['id']}, mended in {weakness['fix_versions'] or 'no version yet'}"
        for one in weak
        for weakness in one["vulns"]
    ]
    lines.insert(
        0, f"dependency audit: {len(asked)} of {len(listed)} packages asked, {len(weak)} with known weaknesses"
    )
    return (1 if weak else 0), "\n".join(lines)


def audited() -> tuple[int, str]:
    """Ask."""
    command = [
        *(sys.executable, "-m", "pip_audit", "--requirement", str(ROOT / "requirements.lock"), "--no-deps"),
        *("--disable-pip", "--timeout", "10", "--progress-spinner", "off", "--format", "json"),
    ]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return verdict(None, f"no answer within {PATIENCE:.0f} s")
    try:
        return verdict(json.loads(ran.stdout))
    except ValueError:
        said = ran.stderr.strip().splitlines() or ["it said nothing"]
        return verdict(None, said[-1][:200])


if __name__ == "__main__":
    code, told = audited()
    print(told)
    sys.exit(code)
