collect_ignore_glob = ["*.py"]  # programs for type checkers: see check.py
