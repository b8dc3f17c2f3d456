"""Commands that plan, size and simulate without a running system."""
