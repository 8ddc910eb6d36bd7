"""Charts of the report as static SVG with the data by which the browser makes them interactive."""
