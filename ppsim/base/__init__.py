"""What every room may use: errors, units, files, arrays; it knows nothing of pipelines."""
