"""Requests of a serving job: drawn at random, or read from a trace.

Workers are in serving.deployments.
"""
