"""Looking, after training, for the neurons that hold memorized documents in a standard model, and switching them off.

What memorization sinks are compared with (paper sections 3.1 and 5.1, appendix C). The methods that look are in `scores`;
`removal` drops what they find and measures what that takes away, `tuning` chooses the settings of one of them.
"""
