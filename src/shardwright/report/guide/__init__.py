"""Files made of a guide's JSON: an HTML page, a Markdown page, and a skill file for agents."""
