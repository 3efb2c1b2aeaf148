"""Measures a device with torch and writes a profile; traces unknown architectures; needs `torch` or `models`."""
