"""Plans, steps and clusters as text and SVG pictures. Whole screens are in report.screens."""
