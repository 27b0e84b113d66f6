"""The checks, one module a group."""
