"""The fleet: which workers there are, what they said of themselves, and whether they can be reached."""
