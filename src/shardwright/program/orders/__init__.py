"""Orders of actions: rows, tables, dependencies, deadlocks.

Named schedules are in schedules.
"""
