"""What is trained: layers, their parameters, FLOPs and bytes."""
