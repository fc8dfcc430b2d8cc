"""The catalog's limits of models: which are crossed, since when, and what is said of it. Nothing else is done."""
