"""Style sheet and scripts that every page embeds."""
