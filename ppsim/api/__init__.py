"""The functions of `import ppsim`, one module per function.

The command line parses arguments, calls these functions and prints the results; notebooks call them directly.
"""
