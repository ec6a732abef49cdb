"""The HTTP interface: one module for each group of routes, and one table from outcomes to HTTP (`errors`)."""
