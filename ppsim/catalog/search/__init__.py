"""Search for tables for given costs and memory."""
