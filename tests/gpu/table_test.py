"""The table at the end of tests/gpu/run.sh."""

from __future__ import annotations

from tests.gpu.table import table


def test_a_row_for_each_model_and_test_and_a_group_of_columns_for_each_build() -> None:
    one = {"model": "8b", "test": "tg128", "tok_s": 600.04, "peer_tok_s": 275.0, "ratio": 2.18, "share_of_floor": 0.645}
    rows = {"sm_90": [one | {"j_per_token": 0.71234}], "ptx_80": [{**one, "test": "tg128 x16", "j_per_token": None}]}
    rows["ptx_80"][0]["peer_tok_s"] = rows["ptx_80"][0]["ratio"] = None
    head, rule, first, second = table(rows)
    assert head.startswith("| model | test | sm_90 tokens/s | sm_90 llama.cpp | sm_90 ratio | sm_90 of the floor |")
    assert head.count("|") == rule.count("|") == first.count("|") == second.count("|") == 13
    assert first == "| 8b | tg128 | 600.0 | 275.0 | 2.18 | 64% | 712.3 |  |  |  |  |  |"
    assert second == "| 8b | tg128 x16 |  |  |  |  |  | 600.0 |  |  | 64% |  |"
