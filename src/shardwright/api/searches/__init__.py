"""Searches for the best plan, one file for each kind of space. Single strategies are in api."""
