"""luce_fault_code: what an op of the oracle returns, and what the kernels leave in the fault word."""

NONE, TOKEN, PAGE, ROW, LOGITS, MAILBOX = range(6)
