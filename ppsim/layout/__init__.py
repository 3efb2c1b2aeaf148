"""How devices, layers and tokens are divided; it needs no model."""
