"""The planner's process: plans, selection tables, dead devices, demand windows."""
