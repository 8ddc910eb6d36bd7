"""CSV tables of measured runs and the facts about them, read strictly.

Rows become runs to predict in validation.training and validation.serving.
"""
