"""Measurements against the model: layouts of data, fits, prediction errors, and measured tables."""
