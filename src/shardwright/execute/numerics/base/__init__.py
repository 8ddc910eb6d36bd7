"""Parts that all operators share: the operator protocol, process-group calls, number formats.

Operators are in the packages beside it.
"""
