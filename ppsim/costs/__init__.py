"""From a profile or a training job to seconds and bytes a stage."""
