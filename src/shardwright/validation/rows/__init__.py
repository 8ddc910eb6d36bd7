"""From a row of a table to a problem and the strategy that ran.

Tables are read in validation.tables.
"""
