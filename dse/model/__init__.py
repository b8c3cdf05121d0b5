"""The physics: pure functions, arrays in, arrays out. See docs/model.md."""
