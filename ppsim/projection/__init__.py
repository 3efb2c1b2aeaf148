"""Projection of one plan or several: interval, loss budget, sensitivities, advice, and searches for splits."""
