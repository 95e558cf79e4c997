"""Apps that Flower's own processes load are not modules of this test suite."""

collect_ignore = [
    "attacking_client_app.py",
    "hostile_client_app.py",
    "recording_client_app.py",
    "slowing_client_app.py",
]
