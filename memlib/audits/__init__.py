"""What is particular to each audit: one pure module each, with the doors Config, score and summarize."""
