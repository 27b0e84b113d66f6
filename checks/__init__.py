"""The diagnostics behind `kvctl validate`."""
