"""A Proxmox host of the tests' own: `qm`, `pvesh`, `pvesm` and `ping` that keep state in a folder and can fail."""
