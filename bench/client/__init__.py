"""The load generator: its own sockets, its own timestamps (the measurement contract)."""
