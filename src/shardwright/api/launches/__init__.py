"""Advice on existing launches. Searches are in api.searches."""
