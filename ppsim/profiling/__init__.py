"""Measures operators of a device with torch, and writes a profile; needs the extra `torch`."""
