"""Charts as SVG, for the pages and for files: sheets, frames with axes, and the charts that both use. Pure."""
