"""A placeholder until the archive is joined."""
