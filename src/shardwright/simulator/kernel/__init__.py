"""The event kernel: tasks that share resources on an integer clock, without any domain. Tasks are
made in simulator.
"""
