"""The embedded broker of another process, over HTTP on loopback."""
