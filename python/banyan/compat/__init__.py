"""Programs of other systems, run with Banyan."""
