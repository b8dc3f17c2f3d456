"""Known weaknesses of dependencies, asked twice: of the advisories that are pinned here, always; of a vulnerability
service, where one answers.

`advisories.json` lists advisories of packages that are installed, with the versions affected. Both what
`requirements.lock` pins and what is installed are held against it; that needs no network. pip-audit then asks a service
of the whole lock; where none can be reached, that part, and only that, is said to be skipped.

Exit code 1 where a weakness is known, where the lock does not pin a version, or where the advisories are unreadable or
were not reviewed for more than `STALE_DAYS` days.
"""

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
ADVISORIES = Path(__file__).resolve().parent / "advisories.json"
PATIENCE = 60.0
STALE_DAYS = 365
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;]+)")


def locked(text: str) -> dict[str, str]:
    """Package -> version of a lock file. Raises ValueError where a line pins none."""
    found = {}
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith(("#", "-")):
            continue
        pin = _PINNED.match(line)
        if pin is None:
            raise ValueError(f"requirements.lock pins no version: {line.strip()!r}")
        found[canonicalize_name(pin[1])] = pin[2]
    return found


def installed() -> dict[str, str]:
    """Package -> version of this environment."""
    return {canonicalize_name(d.metadata["Name"]): d.version for d in metadata.distributions()}


def weak(versions: Mapping[str, str], advisories: Sequence[Mapping[str, str]]) -> list[str]:
    """What is affected, one line each."""
    return [
        f"{one['package']} {version}: {one['id']}, affects {one['affected']}"
        for one in advisories
        if (version := versions.get(canonicalize_name(one["package"]))) is not None
        and SpecifierSet(one["affected"], prereleases=True).contains(Version(version))
    ]


def pinned(
    document: Mapping[str, Any], lock: Mapping[str, str], there: Mapping[str, str], today: date
) -> tuple[int, list[str]]:
    """Exit code and what to say of the advisories that are pinned."""
    advisories = document["advisories"]
    known = {canonicalize_name(one["package"]) for one in advisories}
    found = [f"  locked: {line}" for line in weak(lock, advisories)]
    found += [f"  installed: {line}" for line in weak({n: v for n, v in there.items() if n in lock}, advisories)]
    age = (today - date.fromisoformat(document["reviewed"])).days
    if age > STALE_DAYS:
        found.append(f"  .ci/advisories.json was reviewed {age} days ago: review it and set its date")
    said = f"pinned advisories: {len(advisories)} of {len(known & set(lock))} packages, held against {len(lock)} pins"
    return (1 if found else 0), [f"{said}, {len(found)} faults", *found]


def verdict(report: dict[str, Any] | None, problem: str = "") -> tuple[int, str]:
    """Exit code and what to say of pip-audit's JSON; None: it gave none."""
    if report is None:
        return 0, f"vulnerability service SKIPPED: {problem or 'pip-audit gave no report'}"
    listed = report["dependencies"]
    asked = [one for one in listed if "skip_reason" not in one]
    if not asked:
        return 0, f"vulnerability service SKIPPED: none knows any of {len(listed)} packages (offline?)"
    weak_ones = [one for one in asked if one["vulns"]]
    lines = [
        f"  {one['name']} {one['version']}: {weakness['id']}, mended in {weakness['fix_versions'] or 'no version yet'}"
        for one in weak_ones
        for weakness in one["vulns"]
    ]
    lines.insert(
        0,
        f"vulnerability service: {len(asked)} of {len(listed)} packages asked, {len(weak_ones)} with known weaknesses",
    )
    return (1 if weak_ones else 0), "\n".join(lines)


def audited() -> tuple[int, str]:
    """Ask a service."""
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


def main() -> int:
    """Both; the worse code counts."""
    lock = locked((ROOT / "requirements.lock").read_text(encoding="utf-8"))
    document = json.loads(ADVISORIES.read_text(encoding="utf-8"))
    code, lines = pinned(document, lock, installed(), datetime.now(UTC).date())
    print("\n".join(lines))
    asked, told = audited()
    print(told)
    return max(code, asked)


if __name__ == "__main__":
    sys.exit(main())
