"""Commands of jobgen, one module each, imported when they run."""
