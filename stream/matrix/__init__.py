"""The probe matrix: what is planned, run and accepted."""
