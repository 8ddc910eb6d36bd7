"""Members of a grid space as arrays: axes, meshes, memory choices, counts."""
