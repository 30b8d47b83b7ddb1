"""One file per figure of the paper: which runs it needs, what they show, what it looks like."""
