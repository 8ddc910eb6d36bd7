"""Searched or simulated changes of a stored plan that a report suggests, with what each is worth."""
