"""Sources, decoding, splits, background crops and canaries of images and text."""
