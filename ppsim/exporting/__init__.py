"""A table as what a trainer reads."""
