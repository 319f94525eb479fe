"""python -m tests.ops --perf [op] [--isa avx2] [--threads N]: times the cases that are shaped as models are."""

from __future__ import annotations

import argparse
import time

import numpy as np

from luced.device import abi
from luced.device.library import Context
from tests.ops.cases import CASES
from tests.ops.harness import Case, Placed, prepare

_LEAST_S = 0.1


def seconds(context: Context, case: Case) -> float:
    """The median time of a run; in-place cases run on what they have made."""
    placed = Placed(case.args())
    calls, keep = prepare(context, case.op, placed.values)
    context.run(calls)
    times: list[float] = []
    while len(times) < 5 or sum(times) < _LEAST_S:
        begin = time.perf_counter()
        context.run(calls)
        times.append(time.perf_counter() - begin)
    del keep
    return float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.ops", description=__doc__)
    parser.add_argument("--perf", metavar="OP", nargs="?", const="", required=True, help="an op, or all of them")
    parser.add_argument("--isa", choices=[isa.name.lower() for isa in abi.Isa], default="auto")
    parser.add_argument("--threads", type=int, default=0, help="0: one for each core")
    options = parser.parse_args()
    with Context(abi.Isa[options.isa.upper()], options.threads) as context:
        info = context.info()
        print(f"{info.name.decode()}, {abi.Isa(info.isa).name.lower()}, {info.n_threads} threads")
        print(f"{'case':40} {'us':>10} {'GB/s':>8} {'GOP/s':>8}")
        for case in CASES:
            if case.is_timed and options.perf in ("", case.op):
                time_s = seconds(context, case)
                n_bytes = sum(a.nbytes for a in case.args().values() if isinstance(a, np.ndarray))
                operations = f"{case.flops / time_s / 1e9:8.1f}" if case.flops else ""
                print(f"{case!s:40} {time_s * 1e6:10.1f} {n_bytes / time_s / 1e9:8.1f} {operations}")


main()
