"""The engine process: policy (scheduler, pages, prefix, slots), and what runs it (loader, runner, worker)."""
