"""The rules of the training guide, one module each; `api.guide.rule_table` lists them in order."""
