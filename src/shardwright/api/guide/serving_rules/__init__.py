"""The rules of the serving guide, one module each.

`api.guide.serving_rules_in_order` lists them.
"""
