"""What of a run may be written down, and how secrets are found in it and replaced by tokens."""
