"""python -m tests.fuzz TARGET --seconds N: coverage-guided fuzzing of one target; needs atheris.

Starts from the kept corpus; what is new goes to --work. An input that fails is written there as crash-..., and shown:
mend what it found, and put it into tests/fuzz/corpus/TARGET under a name that says what it is.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import atheris


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz one target.")
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--work", type=Path, default=Path("build/fuzz"))
    args = parser.parse_args()
    with atheris.instrument_imports(include=["luce", "luced", "luce_shell", "jinja2", "tomllib"]):
        from tests.fuzz.targets import CORPUS, TARGETS
    work = args.work / args.target
    work.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={args.seconds}",
        f"-artifact_prefix={work}/",
        "-max_len=4096",
        "-timeout=10",
        "-rss_limit_mb=4096",
    ]
    atheris.Setup([sys.argv[0], *options, str(work), str(CORPUS / args.target)], TARGETS[args.target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
