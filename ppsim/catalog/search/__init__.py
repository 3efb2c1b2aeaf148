"""Tables searched for given costs and memory."""
