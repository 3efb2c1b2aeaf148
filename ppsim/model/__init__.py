"""Layers as lists of operators, stages as lists of layers, plans of recomputation and offload."""
