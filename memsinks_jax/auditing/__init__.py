"""What a trained model still leaks: measured with its sinks dropped, own or all on, beside a standard model and an
oracle that never saw the repeats.

`subjects` says what is asked about which documents; every other file is one question.
"""
