"""The paper reproduced: its claims, what was found about them, and how that was computed."""
