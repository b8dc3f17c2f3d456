"""The figures of Proteus (ASPLOS 2024) again: workloads, systems, plots and pages."""
