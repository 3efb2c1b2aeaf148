"""DeepSpeed: read its JSON configuration, write instructions of its pipeline engine."""
