"""The event kernel: tasks that share resources on an integer clock, without domain knowledge.

The tasks are built in simulator.
"""
