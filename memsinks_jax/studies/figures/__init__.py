"""One file per figure of the paper or study: its runs, what it measures, how it is drawn."""
