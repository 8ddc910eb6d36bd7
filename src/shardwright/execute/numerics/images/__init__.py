"""Image towers: patches, their positions, and image tokens in a text."""
