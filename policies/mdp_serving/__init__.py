"""Batching policies that choose the variant of each batch: by a selection table, or by rules to compare it with."""
