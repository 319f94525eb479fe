"""Devices: their memory, and the kernel libraries. The only place with ctypes."""
