"""Hostile inputs for every reader: valid files, their mutations, and the readers that must refuse or read them."""
