"""Structural rules that a general plan must keep before it can be lowered."""
