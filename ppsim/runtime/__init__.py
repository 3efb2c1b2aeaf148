"""Torch executes a table for real and its timeline is recorded; needs the extra `torch`."""
