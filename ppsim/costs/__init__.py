"""Seconds, bytes and FLOPs of each stage, from a job or from a profile."""
