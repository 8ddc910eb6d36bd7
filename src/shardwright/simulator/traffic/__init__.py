"""Bytes that devices send in a step, by group and network level, and dollars of egress."""
