"""A device's shares of operators, parameters, gradients and optimizer states.

The step that uses them is in execute.training.
"""
