"""Records to domain values and back: one codec a kind of record."""
