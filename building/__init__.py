"""Builds the files of a release: `scripts/build`. Not part of the package; it runs from a checkout."""
