"""Commands that run a system, and send it queries."""
