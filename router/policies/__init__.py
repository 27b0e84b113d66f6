"""Policies: one file a policy. `registry.py` is the list; `choice.py` the two ways to pick from costs."""
