"""Where instances come from: the port to a provider, a simulated one, and sources of notices."""
