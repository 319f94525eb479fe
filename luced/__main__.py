"""python -m luced: the same as the command `luced`."""

from luced.cli import main

main()
