"""What a stage is: its key, its code, its artifact, and what the artifact's manifest records."""
