"""The two YAML files and the catalog: types, defaults, and errors that a person can act on."""
