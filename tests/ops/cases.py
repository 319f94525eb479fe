"""The table of cases: what the tests check and what `python -m tests.ops --perf` times."""

from __future__ import annotations

from tests.ops import attention_cases, cache_cases, dense_cases, sampling_cases, state_cases, weight_cases

CASES = [
    *dense_cases.CASES,
    *cache_cases.CASES,
    *attention_cases.CASES,
    *state_cases.CASES,
    *sampling_cases.CASES,
    *weight_cases.CASES,
]

assert len({str(case) for case in CASES}) == len(CASES), "two cases have one name"
