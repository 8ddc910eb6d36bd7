"""Searched or simulated changes of a stored plan that a report suggests, and their worth."""
