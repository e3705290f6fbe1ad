"""What a run of an agent is recorded with, from the process that guards it to its folder."""
