"""The cores of the query path: each owns what one role decides, live and simulated."""
