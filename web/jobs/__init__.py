"""Jobs: past and running ones, those of the catalogue and those that the root service started."""
