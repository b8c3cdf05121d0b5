"""Devices, links, prices, models and efficiencies: one row a number, with unit, source, date and grade."""

from dse.catalog.accuracy import ProfileError
from dse.catalog.device_file import device_file_text, load_device_file
from dse.catalog.loader import Catalog, Fact, load_catalog
from dse.catalog.model_file import load_model_file

__all__ = ["Catalog", "Fact", "ProfileError", "device_file_text", "load_catalog", "load_device_file", "load_model_file"]
