"""Catalogues as files: our JSON and the formats of published measurements."""
