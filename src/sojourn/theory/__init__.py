"""What is known without simulating: steady state, noise floor, bounds, stability, energy."""
