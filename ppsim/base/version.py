"""The version of ppsim."""

__version__ = "0.3.0.dev0"
