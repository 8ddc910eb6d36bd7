"""The reader of tables of served configurations: columns, rows as deployments, fit and page.

Training runs are in validation.training.
"""
