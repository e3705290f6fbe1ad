"""What an agent changed in a folder: its state before, the differences, and a patch of them."""
