"""TorchTitan: its job configurations read and written, and its settings for a schedule."""
