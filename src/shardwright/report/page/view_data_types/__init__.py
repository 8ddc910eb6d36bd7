"""Dataclasses of the report's views; `api.report` fills them, `report.page.views` renders them."""
