"""Commands for the terminal. Each is a client like any other."""
