"""Models as blocks of operators with shapes.

Published models are in model.catalog, readers of config.json in model.families.
"""
