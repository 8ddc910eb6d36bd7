"""HTML elements, sentences with numbers from the report's JSON, tables, and the page's frame."""
