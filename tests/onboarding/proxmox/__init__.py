"""A Proxmox host of the tests' own: `qm`, `pvesh`, `pvesm`, `ping`, with state in a folder, that can fail."""
