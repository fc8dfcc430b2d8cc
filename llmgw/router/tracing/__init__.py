"""Optional: a span for each request, for an OpenTelemetry collector. Nothing here is loaded while it is off."""
