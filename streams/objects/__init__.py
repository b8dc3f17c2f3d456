"""Claim checks: what is too large for topics lies in an object store, and records refer to it."""
