"""TorchTitan: read and write its job configurations, and write its settings for a schedule."""
