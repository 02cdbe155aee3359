"""The data of the pages and the API: plain, without HTML and without a request. One module for each page."""
