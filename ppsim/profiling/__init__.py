"""Measuring what a pass costs on a device; needs the extra `torch`."""
