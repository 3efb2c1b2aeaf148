"""The functions of `import ppsim`, one file each.

The command line is a reader of arguments and a printer above these; a notebook calls them itself.
"""
