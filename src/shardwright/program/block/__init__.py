"""One block lowered on one device: kernels, communication and saved tensors.

Where tensors lie is in program.layout.
"""
