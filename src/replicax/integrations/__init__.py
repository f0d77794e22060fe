"""Other libraries under strategies, each optional: import the one that you use."""
