"""Readers for recordings of other profilers and trainers, one module per format."""
