"""Published models by name, each with its sizes and source.

Readers of config.json are in model.families.
"""
