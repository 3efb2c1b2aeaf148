"""Basics for all packages: errors, units, files, arrays, declarations of options."""
