"""Mutants: which changes of the pure code no fast test notices."""
