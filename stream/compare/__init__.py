"""Two runs held against each other: what one reached that another did not."""
