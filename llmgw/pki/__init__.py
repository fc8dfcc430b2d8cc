"""The authority: issuing, renewing and revoking certificates, and TLS contexts."""
