"""The dashboards, one module each; `panels` is what they are made of."""
