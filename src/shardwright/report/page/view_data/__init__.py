"""Data of the report's views; `api.report` computes it, `report.page.views` renders it."""
