"""NeMo AutoModel: read its YAML recipes."""
