"""ms-swift's arguments, read."""
