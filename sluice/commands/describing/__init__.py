"""``sluice describe``: what the system is, for those who maintain it."""
