"""Generating load and watching what becomes of it."""
