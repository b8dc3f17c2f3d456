"""Labelled rows, split once: those a model is built from, and those it is measured on."""

from dataclasses import dataclass

from sluicegate.profiles.demo.features import Array


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Inputs are [n, *row shape]; labels are [n], 0..classes-1. ``held_out``: what accuracies are measured on."""

    inputs: Array
    labels: Array
    held_out: Array
    held_out_labels: Array
    classes: int
