"""Catalogues of apps, variants and profiles, in memory and as folders, and how they are measured."""
