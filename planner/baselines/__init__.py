"""Planners of published systems, and ablations of ours, behind the interface of every planner."""
