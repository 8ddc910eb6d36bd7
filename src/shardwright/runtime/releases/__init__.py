"""Training frameworks by release, one file for each framework.

The form of a runtime is in runtime.
"""
