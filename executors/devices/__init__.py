"""GPUs: discovery, MIG geometry, MPS daemons, the environment of a child process, and a fake of it all."""
