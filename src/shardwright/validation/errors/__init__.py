"""Prediction errors by row, source and group, and the accuracy page."""
