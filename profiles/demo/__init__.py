"""Demo applications: real data, real held-out accuracy, models built in seconds with NumPy and written as ONNX."""
