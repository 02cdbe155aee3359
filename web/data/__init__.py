"""What the pages and the API show: plain data, without HTML and without a request. A module for each page."""
