"""Layers as lists of operators, stages as lists of layers, plans for recomputation and offloading."""
