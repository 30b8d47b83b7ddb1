"""Does anything still leak, and what was removed? Measures of a trained model with its sinks dropped, own or all on, beside
a standard one and an oracle that never saw the repeats.

`subjects` says what is asked about which documents; every other file is one question.
"""
