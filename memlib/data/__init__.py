"""Which examples exist, which a model may see, and how an image is cut."""
