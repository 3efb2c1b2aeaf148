"""Code that runs inside a trainer's process: one small module per trainer, which imports nothing heavy of ppsim."""
