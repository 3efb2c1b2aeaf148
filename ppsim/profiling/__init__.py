"""Measurement of a device with torch, written to a profile, and tracing of unknown architectures.

Needs the extra `torch` or `models`.
"""
