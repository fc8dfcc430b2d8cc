"""The node's certificate: there, in force, belonging to its key, this node's, and of the server's authority."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding

from llmgw.doctor.check import Node
from llmgw.messages.findings import Finding
from llmgw.pki.errors import PkiError
from llmgw.pki.expiry import certificate_findings
from llmgw.pki.files import load_certificates
from llmgw.pki.peer import Peer, peer_from_der
from llmgw.pki.tls import agent_context

_STILL_USABLE = ("key-open", "certificate-expiring")
_WHY = "The server refuses this node, or sends requests to the wrong place"


def check_certificate(node: Node) -> list[Finding]:
    """Certificate, key and root, as `tls` in agent.yaml names them."""
    tls = node.config.tls
    found = certificate_findings([tls.cert, tls.ca], node.now())
    findings = [node.finding(f.check, f.severity, f.where, f.what, why=f.why, remedy=f.remedy) for f in found]
    findings += check_key(node)
    # What follows would say once more that a file cannot be read.
    if all(finding.check != "certificate-unreadable" for finding in found):
        findings += _identity(node)
        if all(finding.check in _STILL_USABLE for finding in findings):
            findings += _usable(node)
    return findings


def check_key(node: Node) -> list[Finding]:
    """The private key: there, and nobody else's to read."""
    key = node.config.tls.key
    try:
        mode = stat.S_IMODE(os.stat(key).st_mode)
    except OSError as error:
        return [
            node.finding(
                "key-unreadable",
                "error",
                key,
                f"the key cannot be read: {error.strerror}",
                why="Without it this node cannot prove who it is",
                remedy="copy it from the folder that llmgw ctl cert issue-client made, or correct tls.key",
            )
        ]
    if mode & 0o077:
        return [
            node.finding(
                "key-open",
                "error",
                key,
                f"the key's mode is {mode:04o}, so that others than its owner may use it",
                why="Whoever reads it can pose as this node",
                remedy=f"chmod 600 {key}; if strangers had access, llmgw ctl cert revoke {node.config.node_id}",
            )
        ]
    return []


def _identity(node: Node) -> list[Finding]:
    """Name and address in the certificate against those that this node goes by (invariant 5)."""
    config = node.config
    cert = config.tls.cert
    issue = f"llmgw ctl cert issue-client {config.node_id} --address {node.address() or 'IP'}"
    try:
        peer: Peer = peer_from_der(load_certificates(Path(cert), "certificate", "")[0].public_bytes(Encoding.DER))
    except PkiError as error:
        return [node.finding("certificate-foreign", "error", cert, str(error), why=_WHY, remedy=issue)]
    findings = []
    if peer.node_id != config.node_id:
        what = f"the certificate is {peer.node_id}'s, and this node's id is {config.node_id}"
        remedy = f"set node_id: {peer.node_id} in agent.yaml, or on the authority's host: {issue}"
        findings.append(node.finding("certificate-name", "error", cert, what, why=_WHY, remedy=remedy))
    address = node.address()
    if peer.address is None:
        what = "the certificate carries no address"
        findings.append(node.finding("certificate-address", "error", cert, what, why=_WHY, remedy=issue))
    elif address is not None and peer.address != address:
        what = f"the certificate is for {peer.address}, and engines listen on {address}"
        remedy = f"set mgmt_addr: {peer.address} in agent.yaml, or on the authority's host: {issue}"
        findings.append(node.finding("certificate-address", "error", cert, what, why=_WHY, remedy=remedy))
    return findings


def _usable(node: Node) -> list[Finding]:
    """Whatever else would keep the agent from using the files: another key, another authority."""
    try:
        agent_context(node.config.tls, node.now())
    except PkiError as error:
        what, _, remedy = str(error).partition(". ")
        return [
            node.finding("certificate-unusable", "error", node.config.tls.cert, what, why=_WHY, remedy=remedy)
        ]
    return []
