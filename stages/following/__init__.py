"""Readers of control, registry and results topics."""
