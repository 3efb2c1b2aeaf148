"""DeepSpeed: its JSON configuration, and the instructions of its pipeline engine."""
