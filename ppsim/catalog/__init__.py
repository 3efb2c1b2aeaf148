"""Catalogue of schedules: `published/` patterns, `search/` for tables optimised for given costs."""
