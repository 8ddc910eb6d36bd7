"""Advice on launches that people already have. Searches are in api.searches."""
