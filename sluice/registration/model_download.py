"""A model at an address (``s3://…``, ``https://…``, ``file://…``, ``memory://…``) brought into a file, through fsspec.

Rules. fsspec, and what it needs for a protocol, are optional. Bytes are counted as they come, whatever the server says
of the size, and are kept only once all are there, under the SHA-256 of their content. Credentials belong into the
environment or the protocol's own configuration. Nothing is asked of link-local addresses, where clouds hand out
credentials, whatever name or redirection leads there. Should an address carry some all the same (``user:secret@``,
``?signature=…``), neither an error nor a record repeats them, nor what a client's exception says.
"""

import hashlib
import re
import tempfile
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import urlsplit

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.profiles.formats.addresses import shown

FOLDER = "downloads"
FIELD = "model"
_CHUNK = 1 << 20
_ADDRESS = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_SAFE = re.compile(r"[^A-Za-z0-9._-]")
_WEB = frozenset({"http", "https"})
_REMOTE = frozenset({"abfs", "adl", "az", "file", "ftp", "gcs", "gs", "http", "https", "local", "memory", "s3", "s3a"})
"""Protocols that bring bytes from one place. Those that run commands, unpack or chain others are not among them."""


def is_address(text: str) -> bool:
    """Whether ``text`` is an address and not a path."""
    return bool(_ADDRESS.match(text))


def fetch(url: str, home: Path, max_bytes: int, sha256: str = "") -> Path:
    """The file at ``url``, below ``home``, its folder named by its content's SHA-256; at most ``max_bytes``.

    ``sha256``: what the content must have, hex; empty: anything. Raises InvalidInputError where it cannot be had, is
    too large or is another, ConfigurationError where the protocol cannot be spoken here.
    """
    if sha256 and not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise InvalidInputError("sha256", f"{sha256!r:.80}; give 64 hexadecimal digits")
    try:
        urlsplit(url)
    except ValueError as error:  # it may repeat what an address keeps secret, and is not shown
        raise InvalidInputError(FIELD, f"is no address ({type(error).__name__}); look at its brackets") from None
    folder = home / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".", suffix=".part") as into:
            digest = _copy(url, into, max_bytes)
            if sha256 and digest != sha256.lower():
                raise InvalidInputError(FIELD, f"{shown(url)} has SHA-256 {digest}, not {sha256.lower()}")
            into.flush()
            return _keep(Path(into.name), folder / digest, _name(url))
    except OSError as error:
        raise ConfigurationError(f"cannot write in {folder}: {error.strerror}; set SLUICE_HOME") from error


def forget(file: Path) -> None:
    """What was fetched is of no use: nothing of it is kept."""
    file.unlink(missing_ok=True)
    with suppress(OSError):  # another may have been fetched there under another name
        file.parent.rmdir()


def _copy(url: str, into: IO[bytes], max_bytes: int) -> str:
    digest = hashlib.sha256()
    size = 0
    with _opened(url) as source:
        while chunk := _read(source, url):
            size += len(chunk)
            if size > max_bytes:
                raise InvalidInputError(FIELD, f"{shown(url)} has over {max_bytes} bytes; at most so many are taken")
            digest.update(chunk)
            into.write(chunk)
    return digest.hexdigest()


def _opened(url: str) -> IO[bytes]:
    scheme = urlsplit(url).scheme.lower()
    if scheme not in _REMOTE or "::" in url:
        raise InvalidInputError(FIELD, f"{shown(url)}: {scheme!r} is not one of {', '.join(sorted(_REMOTE))}")
    try:
        import fsspec
        from fsspec.registry import known_implementations
    except ImportError:
        raise ConfigurationError("models at addresses need fsspec; install sluicegate[remote]") from None
    try:
        opened: IO[bytes] = fsspec.open(url, "rb", **_options(scheme, url)).open()
    except ImportError as error:
        known = str(known_implementations.get(scheme, {}).get("class", scheme))
        needed = (error.name or known).partition(".")[0]
        raise ConfigurationError(f"{scheme}:// needs the package {needed}; install it beside fsspec") from None
    except Exception as error:  # each protocol raises its own; the cause may repeat what the address keeps secret
        raise _unreadable(url, error) from None
    return opened


def _options(scheme: str, url: str) -> dict[str, Any]:
    """Of the client, so that it keeps away from link-local addresses. Raises LinkLocalError."""
    if scheme not in _WEB and scheme != "ftp":
        return {}
    from sluicegate.sluice.registration.link_local import check_host, client

    check_host(urlsplit(url).hostname or "")
    return {"get_client": client} if scheme in _WEB else {}


def _read(source: IO[bytes], url: str) -> bytes:
    try:
        return source.read(_CHUNK)
    except Exception as error:  # as above
        raise _unreadable(url, error) from None


def _unreadable(url: str, error: Exception) -> InvalidInputError:
    if isinstance(error, FileNotFoundError):
        return InvalidInputError(FIELD, f"{shown(url)} is not there")
    if isinstance(error, IsADirectoryError):
        return InvalidInputError(FIELD, f"{shown(url)} is a folder; give the .onnx file")
    return InvalidInputError(
        FIELD, f"{shown(url)} cannot be read ({type(error).__name__}); see that it is there and that access is granted"
    )


def _name(url: str) -> str:
    return _SAFE.sub("_", PurePosixPath(urlsplit(url).path).name)[-100:].lstrip(".") or "model.onnx"


def _keep(unfinished: Path, folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    kept = folder / name
    if not kept.exists():
        kept.hardlink_to(unfinished)
    return kept
