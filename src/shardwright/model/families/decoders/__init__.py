"""Builders of text models, one file for each family.

Fields that families share are in model.families.fields.
"""
