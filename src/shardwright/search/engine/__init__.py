"""Engines that run the independent tasks of a search: in this process, in local processes or on Ray."""
