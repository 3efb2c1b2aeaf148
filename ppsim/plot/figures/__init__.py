"""Figures for print, by matplotlib: each a function that returns a `Figure` of one column's width or of two."""
