"""Searched plans of a request with another batch, length, cluster size, bandwidth or price."""
