"""The settings, read again while the daemon runs."""

from __future__ import annotations

from dataclasses import fields, replace

from luced.config import Config

# What is looked at whenever it is needed. The rest is used once, at the start of the daemon or the engine.
LIVE = (
    *("model_dirs", "pull_dir", "usual_dirs", "default_model", "aliases", "models"),
    *("n_ctx", "kv_type", "keep_alive"),  # of models that are loaded from now on
    *("max_queue", "max_queue_of_user", "deadline_s", "stall_s"),
)
# What systemd gave to this process: no settings.
GIVEN = ("listen_fd", "notify_socket", "watchdog_s", "has_journal", "sources")


def changes(old: Config, new: Config) -> tuple[Config, list[str], list[str]]:
    """The settings from now on, what has changed, and what changes only with a restart."""
    differ = [f.name for f in fields(old) if getattr(old, f.name) != getattr(new, f.name) and f.name not in GIVEN]
    live = [name for name in differ if name in LIVE]
    config = replace(old, sources=new.sources, **{name: getattr(new, name) for name in live})
    return config, live, [name for name in differ if name not in LIVE]
