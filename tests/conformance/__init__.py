"""One suite for all strategies, eager and compiled.

A test takes the fixtures `strategy` and `mode` (see `conftest.py`) and says what must hold; the numbers it
expects are computed with NumPy from the number of replicas. A new strategy is one line in `STRATEGIES`.
"""
