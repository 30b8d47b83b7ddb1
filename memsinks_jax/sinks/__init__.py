"""The idea: a document's id decides which sink neurons are on (paper section 5.1, appendix G).

The hidden neurons of every MLP are split: the first `shared` are always on, the rest are sinks. A
document may use only its own share of the sinks. S shared neurons, M sinks, F = S + M hidden
neurons, B rows of a batch, N documents of a row, T positions.
"""
