"""Engines that run the independent parts of a search: this process, several processes, or Ray."""
