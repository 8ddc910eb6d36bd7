"""Megatron-LM's arguments: by meaning and release, read from command lines and written.

Frameworks on Megatron-Core are beside it: they say its arguments in other words.
"""
