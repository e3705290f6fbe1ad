"""What the layers of a run come to: its surface, its health, and what goes beside them."""
