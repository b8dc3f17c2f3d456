"""Files of names and secrets: tokens of a front's clients, keys of sources."""

import re
from pathlib import Path

from sluicegate.domain.errors import ConfigurationError

MOST = 1000
_SECRET = 16
"""Characters of a secret at least."""
_NAME = re.compile(r"[A-Za-z0-9/_.:-]{1,200}")


def named_secrets(setting: str, file: Path | None) -> dict[str, str]:
    """Of each line of ``file`` its name and its secret; empty lines and those that begin with # say nothing.

    Raises ConfigurationError, which tells of lines by their number alone.
    """
    if file is None:
        return {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{setting}: {file} cannot be read ({type(error).__name__})") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, _, secret = line.strip().partition(" ")
        secret = secret.strip()
        if not name or name.startswith("#"):
            continue
        told = f"{setting}: line {number} of {file}"
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"{told} begins with no name; give NAME SECRET, names of letters, digits, /_.:-")
        if len(secret) < _SECRET or " " in secret:
            raise ConfigurationError(f"{told} has no secret of {_SECRET} characters or more; give NAME SECRET")
        if name in found or secret in found.values():
            raise ConfigurationError(f"{told} has a name or a secret that stands above; give each its own")
        found[name] = secret
    if len(found) > MOST:
        raise ConfigurationError(f"{setting}: {file} has {len(found)} names; at most {MOST} are taken")
    return found
