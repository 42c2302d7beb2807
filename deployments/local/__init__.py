"""A whole deployment on one machine, without containers, and a drill of what goes wrong in production."""
