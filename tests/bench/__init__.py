"""What `stream` costs, against a floor or a peer measured in the same run."""
