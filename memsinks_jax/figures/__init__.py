"""One file per figure of the paper or study: which runs it needs, what they show, what it looks like."""
