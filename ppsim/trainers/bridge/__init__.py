"""Megatron-Bridge and NeMo: read the YAML or JSON of a run."""
