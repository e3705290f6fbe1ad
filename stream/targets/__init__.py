"""What probes act on outside of their sandbox, prepared and checked from outside."""
