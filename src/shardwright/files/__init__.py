"""Strict readers and writers of the project's files: plans, simulations, profiles and traces."""
