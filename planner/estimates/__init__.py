"""What plans are made for: demand as it is expected, measured latencies, devices that are there."""
