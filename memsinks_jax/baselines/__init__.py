"""Post-hoc methods: find the neurons of a trained standard model that hold memorized documents, and drop them.

What memorization sinks are compared with (paper sections 3.1 and 5.1, appendix C). The methods that look are in `scores`;
`removal` drops what they find and measures what that takes away, `tuning` chooses the settings of one of them.
"""
