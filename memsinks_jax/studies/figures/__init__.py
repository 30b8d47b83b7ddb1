"""One file per figure of the paper or study: which runs it needs, what it measures, how it is
drawn.
"""
