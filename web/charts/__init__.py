"""Pictures that only the dashboard draws: heatmaps as PNG, charts as SVG. Nothing here knows of requests."""
