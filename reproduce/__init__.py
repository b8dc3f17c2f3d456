"""The papers' evaluations again: one page, picture and file of raw numbers a figure. Not part of the distribution.

Each paper has a package with ``FIGURES``: number -> what computes it.
"""
