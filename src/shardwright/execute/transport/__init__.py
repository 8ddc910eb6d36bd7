"""Communication between devices: requests, and transports that answer them.

Operators' use of it is in execute.numerics.base.group_calls.
"""
