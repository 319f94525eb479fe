"""The table of cases: what the tests check and what `python -m tests.ops --perf` times."""

from __future__ import annotations

from tests.ops import (
    attention_cases,
    cache_cases,
    compressed_cases,
    dense_cases,
    expert_cases,
    hyper_cases,
    sampling_cases,
    state_cases,
    weight_cases,
)

AREAS = (
    dense_cases,
    cache_cases,
    attention_cases,
    compressed_cases,
    hyper_cases,
    state_cases,
    sampling_cases,
    weight_cases,
    expert_cases,
)
CASES = [case for area in AREAS for case in area.CASES]

assert len({str(case) for case in CASES}) == len(CASES), "two cases have one name"
