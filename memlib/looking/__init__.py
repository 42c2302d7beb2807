"""One way in: what people bring is looked at, understood in a few lines, and answered as far as no training is needed."""
