"""Post-hoc methods: find the neurons of a trained standard model that hold memorized documents, and
drop them.

Memorization sinks are compared with them (paper sections 3.1 and 5.1, appendix C). `scores` lists
the methods that find neurons, `removal` drops these and measures the effect, `tuning` chooses the
settings of one method.
"""
