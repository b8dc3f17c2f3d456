"""References to objects, and which of them a deployment allows. Pure.

A reference is ``{"ref": "s3://bucket/queries/7", "sha256": "…", "bytes": 4000000}``. It may lie below a prefix that the
deployment names and nowhere else: what follows the prefix is plain names between slashes, so that nothing climbs out of
it, names another host, or means more than one object. Without prefixes none is allowed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluicegate.domain.errors import InvalidInputError, shown

SCHEMES = ("file", "memory", "s3", "s3a", "gs", "gcs", "az", "abfs")
"""Of stores that are asked. Web servers are not among them: they redirect to wherever they like."""
_FOLDERS = r"(?:(?!\.{1,2}/)[A-Za-z0-9_.=+~,-]+/)+"
_PREFIX = re.compile(rf"(?:file:///|memory:///?|(?:{'|'.join(SCHEMES[2:])})://){_FOLDERS}")
_KEY = re.compile(r"(?:[A-Za-z0-9_=+~,-][A-Za-z0-9_.=+~,-]*/)*[A-Za-z0-9_=+~,-][A-Za-z0-9_.=+~,-]*")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_REF = 1024
MAX_BYTES = 1 << 31


@dataclass(frozen=True, slots=True)
class Claim:
    """An object: where it is, what its content hashes to (hex), and how long it is."""

    ref: str
    sha256: str
    bytes: int

    def document(self) -> dict[str, Any]:
        """As it stands in a body."""
        return {"ref": self.ref, "sha256": self.sha256, "bytes": self.bytes}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRules:
    """What may be referred to: objects below ``prefixes``, of ``max_bytes`` at most, whose texts have
    ``max_element_bytes`` at most."""

    prefixes: tuple[str, ...] = ()
    max_bytes: int = 64 << 20
    max_element_bytes: int = 1_000_000

    def check(self, field: str, claim: Claim) -> None:
        """Raise InvalidInputError for what is not allowed."""
        if not self.prefixes:
            raise InvalidInputError(field, "refers to an object, and this system takes none (objects.prefixes)")
        if not any(claim.ref.startswith(p) and _KEY.fullmatch(claim.ref, len(p)) for p in self.prefixes):
            raise InvalidInputError(
                f"{field}.ref",
                f"{shown(claim.ref, 80)} is not below what is allowed; ask who runs this (objects.prefixes)",
            )
        if claim.bytes > self.max_bytes:
            most = f"at most {self.max_bytes} (objects.max_bytes) are taken"
            raise InvalidInputError(f"{field}.bytes", f"is {claim.bytes}; {most}")


NO_OBJECTS = ObjectRules()


def check_prefix(prefix: str) -> str:
    """``prefix`` if it can be one. Raises ValueError."""
    if not _PREFIX.fullmatch(prefix) or len(prefix) > _MAX_REF // 2:
        raise ValueError(
            f"{prefix!r:.100} names no place: give {', '.join(SCHEMES)}, a bucket or folder, and a slash at its end, "
            "such as s3://bucket/queries/"
        )
    return prefix


def claim_of(field: str, told: Mapping[str, Any]) -> Claim:
    """The reference that a body holds. Raises InvalidInputError for what is none."""
    unknown = sorted(set(told) - {"ref", "sha256", "bytes"})
    if unknown:
        raise InvalidInputError(field, f"has {shown(unknown[0], 40)}; a reference has ref, sha256 and bytes")
    ref, digest, size = told.get("ref"), told.get("sha256"), told.get("bytes")
    if not isinstance(ref, str) or not 0 < len(ref) <= _MAX_REF or not ref.isascii() or not ref.isprintable():
        raise InvalidInputError(f"{field}.ref", f"is {shown(ref, 80)}; give the address of an object")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise InvalidInputError(f"{field}.sha256", f"is {shown(digest, 80)}; give 64 hexadecimal digits in lower case")
    if type(size) is not int or not 0 < size <= MAX_BYTES:
        raise InvalidInputError(f"{field}.bytes", f"is {shown(size, 40)}; give how long the object is")
    return Claim(ref, digest, size)
