"""Choosing a strategy: theory proposes, pilot runs decide, fresh seeds confirm."""
