"""Steps that bring a tensor from one layout to another.

Layouts are in program.layout.
"""
