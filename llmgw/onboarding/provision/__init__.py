"""A node's VM on a Proxmox host, from nothing to an answering ssh port, through Proxmox's own `qm` and `pvesh`.

Every check comes before any change, and a VM that does not come to its end is removed again, if it is ours.
"""
