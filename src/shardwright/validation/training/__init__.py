"""The reader of tables of training runs: columns, rows as problems, kinds of fold, fit and page.

Served configurations are in validation.serving.
"""
