"""Strategies compared: TOML in, a folder of results out."""
