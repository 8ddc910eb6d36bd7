"""The training or serving job: lengths, batch, number formats, optimizer, traffic.

The model is in model.
"""
