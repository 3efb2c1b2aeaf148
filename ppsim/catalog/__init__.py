"""Every schedule by name: `published/` tables, `search/` for tables that fit given costs, and an entry per name."""
