"""Computation of a report's contents from the file of an answer."""
