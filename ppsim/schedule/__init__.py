"""One schedule: file format, placement, lowering, event graph and checks."""
