"""The version of ppsim, and the name of the distribution that installs it."""

__version__ = "0.4.0.dev0"

DISTRIBUTION = "ppsim-pipeline"
"""The name for pip. On the public package index, `ppsim` is another project (population protocols)."""
