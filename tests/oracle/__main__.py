"""Prints how many recorded cases are covered, differ on purpose, or are left out."""

from .recorded import every_case, table

print(table(every_case()))
