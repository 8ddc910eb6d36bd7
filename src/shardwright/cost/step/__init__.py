"""Seconds, bytes and dollars of a whole training step, added up from the rows of cost.tables."""
