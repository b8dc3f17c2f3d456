"""The composition root: settings in, running stages out."""
