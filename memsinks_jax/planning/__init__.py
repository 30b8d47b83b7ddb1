"""What a train step will need on a machine that is not here: its program, compiled by that machine's compiler, read."""
