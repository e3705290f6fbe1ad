"""What is made of the layers of a run: what they mean, and how far they can be trusted."""
