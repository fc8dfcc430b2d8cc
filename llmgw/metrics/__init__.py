"""What Prometheus reads: families, their text form, and those that servers and agents tell alike."""
