"""Measured rates of one machine in place of the rates of the catalog."""
