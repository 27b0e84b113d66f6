"""The options of `kvctl serve` by theme: each an annotated type with its text, panel and environment twin."""
