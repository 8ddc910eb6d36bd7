"""The rules of the serving guide, one module each; `api.guide.serving_rule_table` lists them."""
