"""How files of a record are appended to, opened, put in place, walked, copied and removed."""
