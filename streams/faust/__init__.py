"""Demand windows and record models on Faust (extra ``faust``)."""
