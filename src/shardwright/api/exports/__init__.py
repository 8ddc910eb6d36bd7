"""Export of a stored plan, and the frameworks that can run a plan as it is."""
