"""Transitions of tensors from one layout to another between devices.

The messages are sent by execute.transport.
"""
