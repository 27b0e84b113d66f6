"""What the fleet's shared store (L2) holds: told by the engines' events, and asked of a Redis."""
