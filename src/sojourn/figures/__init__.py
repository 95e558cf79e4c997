"""Figures as values, and what draws them: matplotlib, SVG and notebook tables; pages draw with Plotly."""
