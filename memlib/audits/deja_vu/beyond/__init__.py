"""Memory beyond the class: attributes that the class does not say, and the image among those of its class."""
