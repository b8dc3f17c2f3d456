"""How GPUs are cut into slices: placement tables, valid geometries, the joint program, reconfiguration."""
