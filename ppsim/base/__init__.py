"""What every package may use: errors, units, files, arrays, declarations of options."""
