"""The training step and loop: data, optimizer, learning rate, token and image files.

One device's work in a step is in execute.interpreter.
"""
