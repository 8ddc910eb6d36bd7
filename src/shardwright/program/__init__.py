"""Plans lowered to tasks: stages, orders, layouts and blocks on devices.

Seconds and bytes of tasks are in cost.
"""
