"""What the command line can, for Python: the verbs of `ppsim`, in the command line's words and with its errors.

The command line is a reader of arguments and a printer above these; a notebook calls them itself.
"""
