"""The audit: proves from the topics what became of every query."""
