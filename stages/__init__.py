"""Thin IO shells, one process role a file: they turn records into events and actions into records, and decide nothing."""
