"""The pages, a module each with a `blueprint`."""
