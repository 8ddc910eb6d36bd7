"""Engines that run the independent tasks of a search: in this process, in others, or on Ray."""
