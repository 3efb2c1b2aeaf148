"""Megatron-Bridge and NeMo: the YAML or JSON of a run."""
