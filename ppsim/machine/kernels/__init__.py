"""Kernel times of a device: from data sheets, microbenchmarks or tables."""
