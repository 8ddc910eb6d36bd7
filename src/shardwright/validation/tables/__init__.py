"""CSV tables of measured runs and the facts beside them, read strictly.

Rows become problems in validation.rows.
"""
