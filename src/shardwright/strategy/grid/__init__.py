"""Grids: degrees along a few axes, as the short form of a plan, and the rules of a legal grid."""
