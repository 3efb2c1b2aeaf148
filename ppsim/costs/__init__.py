"""Seconds, bytes and FLOPs of each stage: sums over the operators of a job, or measured costs of a profile."""
