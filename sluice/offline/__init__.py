"""Planning, tables and comparisons without a running system."""
