"""Commands that read what became of queries."""
