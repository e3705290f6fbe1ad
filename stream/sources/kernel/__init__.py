"""What the kernel shows of a command and all that it starts."""
