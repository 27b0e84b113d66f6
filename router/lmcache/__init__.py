"""An LMCache controller inside the router: its wire, its chunk keys, and who holds which chunk."""
