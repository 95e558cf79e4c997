"""Figures as values, and what draws them: matplotlib, Plotly, SVG and notebook tables."""
