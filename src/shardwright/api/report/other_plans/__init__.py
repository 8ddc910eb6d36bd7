"""Content of the view of other plans: those of the searched space, or those that a file holds."""
