"""Plans a train step on another machine: compiles its program with that machine's compiler, and
reads the result.
"""
