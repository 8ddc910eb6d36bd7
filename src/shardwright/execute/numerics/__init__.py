"""Forward and backward of every operator on one device's share.

The packages are kinds of operators; the registry finds an operator's numerics.
"""
