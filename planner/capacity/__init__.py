"""Elastic capacity: how many workers there should be, and where they come from."""
