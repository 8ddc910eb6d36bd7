"""Search for the order of a pipeline's actions under a memory limit.

Orders with a name are in schedules.
"""
