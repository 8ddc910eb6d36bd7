"""Lower bounds of step time and memory for the members of a grid space."""
