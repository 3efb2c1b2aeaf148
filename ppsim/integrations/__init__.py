"""Code that runs inside a trainer's process: one small module each, which imports nothing heavy of ppsim."""
