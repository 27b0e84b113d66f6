"""A router under mixed traffic before engines that are killed, hung and started again, and what it may not do then."""
