"""Sizes and groups of tensor, pipeline, context, expert and data parallelism; layers per stage; sequence slices."""
