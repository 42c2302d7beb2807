"""Models trained elsewhere: classifiers, encoders and language models."""
