"""Seconds, bytes and FLOPs of each stage, from the operators of a job or from the measured costs of a profile."""
