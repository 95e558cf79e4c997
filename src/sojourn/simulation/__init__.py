"""Who finishes when: service-time laws, dispatch policies, compiled kernels, estimates."""
