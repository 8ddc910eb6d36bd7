"""Image towers of vision-language models, one file for each family."""
