"""Content of the pictures of a guide. Its pages are in report.guide."""
