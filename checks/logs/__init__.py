"""Log text to records and matched patterns."""
