"""What runs models: a process a device or slice on ONNX Runtime, and the devices themselves."""

import os

# Read as ONNX Runtime is loaded: without it, it keeps an identifier of this machine and tells its maker of its use.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
