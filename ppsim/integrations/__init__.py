"""Code that runs inside a trainer: one small module each, which imports nothing heavy of ppsim."""
