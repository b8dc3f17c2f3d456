"""Metrics, traces and what a process tells of itself."""
