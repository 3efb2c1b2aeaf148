"""Search for the fastest parallel configurations that fit in memory."""
