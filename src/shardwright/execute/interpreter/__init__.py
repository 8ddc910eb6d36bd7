"""One device's work in a step of any plan, from its row of the order.

PyTorch's own engine is in execute.native.
"""
