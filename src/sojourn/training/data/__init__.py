"""Data sets, their formats, and how they are shared among clients."""
