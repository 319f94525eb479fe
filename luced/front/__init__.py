"""The front: sockets, sessions, text, models and the engine's supervision. trio; no numpy, no ctypes, no device."""
