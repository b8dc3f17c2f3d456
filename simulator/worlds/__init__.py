"""Smaller worlds of single papers."""
