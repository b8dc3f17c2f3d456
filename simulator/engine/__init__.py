"""One run on the virtual clock."""
