"""Slow twins of the fast code, shaped like the definitions, and exact values."""
