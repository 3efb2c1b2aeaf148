"""Schedule tables: file format, placement, lowering to sends and receives, event graph and checks."""
