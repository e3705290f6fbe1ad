"""What is made of an agent run."""
