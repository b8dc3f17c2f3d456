"""Addresses (``https://…``, ``s3://…``) as people may see them."""

from urllib.parse import urlsplit


def shown(url: str) -> str:
    """``url`` without user, password, query and fragment. Raises ValueError where it is no address."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"[:200]
