"""`luced serve` with another engine: serve_with.py ENGINE... serve OPTIONS..."""

from __future__ import annotations

import sys

from luced.cli import main
from luced.front import child

if __name__ == "__main__":
    at = sys.argv.index("serve")
    engine = sys.argv[1:at]
    del sys.argv[1:at]
    child.command_of = lambda config: engine
    main()
