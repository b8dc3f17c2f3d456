"""One builder a role: what the system shares in, stages out. Each imports what it needs when it is called."""
