"""GPUs cut into slices on the virtual clock.

Processor sharing, reconfiguration, spot capacity, the same pure policies.
"""
