"""Import paths of the original Atropos; the code is in :mod:`atroposlib.generation`."""
