"""Which catalogue, apps and runs a command is about."""
