"""Published models by name, each with its configuration and source.

Readers of config.json are in model.families.
"""
