"""What the kernel feeds see of real programs."""
