"""ONNX Runtime in child processes: the executor, its child, and how variants are made."""
