"""The report's views, one module each: from the report's JSON to question, chart and reading."""
