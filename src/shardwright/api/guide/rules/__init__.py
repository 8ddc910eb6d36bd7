"""The rules of the training guide, one module each.

`api.guide.training_rules_in_order` lists them.
"""
