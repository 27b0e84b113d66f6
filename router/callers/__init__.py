"""Callers: who may use the router (API keys), and how much (their limits)."""
