"""Tables whose rows are examples, and columns of tables that users supply."""
