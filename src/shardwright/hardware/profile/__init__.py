"""Measured rates of one machine, which replace the rates of the catalog."""
