"""The control host's credentials: its authority, or what another host's authority issued for it.

The root key stays in the authority's folder. The server gets its own certificate, and the intermediate whose only
use is to renew agents' certificates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from llmgw.onboarding.control_files import RENEWAL_CERT, RENEWAL_KEY, SERVER_OWNER, SHARED_WITH_SERVER
from llmgw.onboarding.local_host import Action, ControlHostError, LocalHost
from llmgw.pki.authority import CA as CA_FILE
from llmgw.pki.authority import RENEWAL, REVOKED, Authority
from llmgw.pki.authority import RENEWAL_KEY as RENEWAL_KEY_FILE
from llmgw.pki.certificates import DAY_S, alternative_names, cert_to_pem
from llmgw.pki.constraints import Address, Constraints, parse_host
from llmgw.pki.errors import PkiError
from llmgw.pki.files import install_pair, load_certificates
from llmgw.pki.pairs import check_pair, matching_leaf
from llmgw.release.layout import CA, ETC, PKI, SERVER_CERT, SERVER_KEY

DAYS_LEFT_MIN = 90.0
"""A server certificate with less life left than this is issued anew."""
SERVER_FILE, SERVER_KEY_FILE = "server.pem", "server-key.pem"
REVOKED_HERE = f"{ETC}/{REVOKED}"
"""Where the list of another host's authority goes."""


@dataclass
class Credentials:
    """What the server proves itself with, and whom it believes.

    `brought`: a folder from the authority's host with ca.pem, server.pem, server-key.pem and, where this server
    should renew, renewal.pem and renewal-key.pem, and revoked.pem. None: the authority is on this host, or what
    was brought before stays.
    """

    host: LocalHost
    now: float
    hosts: Sequence[str] = ()
    own_hosts: Sequence[str] = ()
    own_name: str = ""
    brought: Path | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def authority_is_here(self) -> bool:
        """Whether the authority is on this host, or is to be made here.

        A root that is installed without its authority is another host's, and nodes trust it.
        """
        if self.brought is not None:
            return False
        return (self.host.path(PKI) / CA_FILE).exists() or self.host.text(CA) is None

    @property
    def renews(self) -> bool:
        """Whether this server renews agents' certificates."""
        if self.brought is not None:
            return (self.brought / RENEWAL).exists()
        return self.authority_is_here or self.host.path(RENEWAL_CERT).exists()

    @property
    def revocations(self) -> str | None:
        """Where the authority's revocation list is, for the server."""
        if self.authority_is_here:
            return f"{PKI}/{REVOKED}"
        place = self.host.path(REVOKED_HERE) if self.brought is None else self.brought / REVOKED
        return REVOKED_HERE if place.exists() else None

    def check(self) -> None:
        """Raise SentenceError for what cannot be meant, before anything is changed."""
        named = [parse_host(one) for one in self.hosts]
        if self.brought is not None:
            if self.hosts:
                raise ControlHostError(
                    "--host is for a certificate issued here, and --credentials brings one; leave one out."
                )
            remedy = "Copy it from the authority's host, where `llmgw ctl cert issue-server --out DIR` wrote it."
            load_certificates(self.brought / CA_FILE, "authority's root certificate", remedy)
            pair = str(self.brought / SERVER_FILE), str(self.brought / SERVER_KEY_FILE)
            check_pair(*pair, "--credentials", "--credentials", "server", remedy, self.now)
        elif not self.authority_is_here:
            self._check_what_stays(named)
        elif not (self.host.path(PKI) / CA_FILE).exists():
            self._refuse_outsiders(named, Constraints.choose((), (), self.own_name))
        root = self._root_of_authority()
        installed = self.host.text(CA)
        if root is not None and installed is not None and installed.strip() != root.strip():
            whose = self.brought or PKI
            raise ControlHostError(
                f"{CA} is the root of another authority than that of {whose}, and nodes may trust it. Use that "
                f"authority, or move {CA} away together with {SERVER_CERT} and {RENEWAL_CERT}."
            )

    def authority(self) -> list[Action]:
        """The authority, where it should be here and is not; and that the server gets to its revocation list."""
        if not self.authority_is_here:
            return []
        folder = self.host.path(PKI)
        if (folder / CA_FILE).exists():
            return self.host.folder(PKI, 0o710, SHARED_WITH_SERVER)

        def make() -> None:
            Authority.create(folder, own_name=self.own_name, now=self.now)
            # The server passes through to the revocation list, and lists nothing.
            for action in self.host.folder(PKI, 0o710, SHARED_WITH_SERVER):
                action.do()

        return [Action(f"make an authority in {PKI}; its root key stays there", make)]

    def install(self) -> list[Action]:
        """The files in /etc/llmgw that server.yaml names."""
        if self.brought is not None:
            return self._install_brought(self.brought)
        if not self.authority_is_here:
            return self._keep()
        folder = self.host.path(PKI)
        if not (folder / CA_FILE).exists():  # a dry run, that has made none
            made = Constraints.choose((), (), self.own_name)
            return [
                Action(f"install the authority's root as {CA}", _nothing),
                Action(f"install the renewal authority as {RENEWAL_CERT} and {RENEWAL_KEY}", _nothing),
                Action(
                    f"issue the server's certificate {SERVER_CERT} for {', '.join(self._wanted(made))}", _nothing
                ),
            ]
        authority = Authority.open(folder)
        actions = self.host.file(CA, authority.ca_pem, 0o644)
        actions += self._pair(RENEWAL_CERT, RENEWAL_KEY, authority.renewal_cert_pem, authority.renewal_key_pem)
        return actions + self._server_certificate(authority)

    @property
    def hosts_of_server(self) -> list[str]:
        """What the server's certificate is for; what it would be for, while there is none."""
        certificate = self._installed_certificate()
        if certificate is not None:
            return alternative_names(certificate)
        return self._wanted(Constraints.choose((), (), self.own_name))

    # The server's certificate.

    def _server_certificate(self, authority: Authority) -> list[Action]:
        held = self._installed_certificate()
        wanted = self._wanted(authority.constraints)
        if not wanted:
            raise ControlHostError(
                "The authority may sign for none of this machine's names and addresses, so the server gets no "
                "certificate; name what agents dial with --host."
            )
        reason = self._why_anew(held, wanted, authority)
        if reason is None:
            return []
        kept = alternative_names(held) if held is not None and _issued_by(held, authority.root) else []
        hosts = list(dict.fromkeys([*wanted, *kept]))

        def issue() -> None:
            issued = authority.issue_server(hosts, self.now)
            self._write_pair(SERVER_CERT, SERVER_KEY, issued.cert_pem, issued.key_pem)

        return [Action(f"issue the server's certificate {SERVER_CERT} for {', '.join(hosts)} ({reason})", issue)]

    def _check_what_stays(self, named: Sequence[str | Address]) -> None:
        """Raise SentenceError unless what another host's authority issued before is good, and for these hosts."""
        remedy = (
            f"{CA} is the root of an authority that is not on this host: issue it there and bring it with "
            f"--credentials. To have a new authority made here, which no node trusts yet, move {CA} away."
        )
        pair = self._paths(SERVER_CERT, SERVER_KEY)
        check_pair(*pair, "agents.tls.cert", "agents.tls.key", "server", remedy, self.now)
        held = self._installed_certificate()
        assert held is not None
        if missing := [str(one) for one in named if str(one) not in alternative_names(held)]:
            raise ControlHostError(f"The server's certificate {SERVER_CERT} is not for {missing[0]}. {remedy}")
        days_left = (held.not_valid_after_utc.timestamp() - self.now) / DAY_S
        if days_left < DAYS_LEFT_MIN:
            self.notes.append(f"The server's certificate holds for {days_left:.0f} more days. {remedy}")

    def _keep(self) -> list[Action]:
        """What another host's authority issued before stays; its keys are made the server's if need be."""
        actions: list[Action] = []
        for cert, key in ((SERVER_CERT, SERVER_KEY), (RENEWAL_CERT, RENEWAL_KEY)):
            cert_pem, key_pem = self.host.text(cert), self.host.text(key)
            if cert_pem is not None and key_pem is not None:
                actions += self._pair(cert, key, cert_pem, key_pem)
        return actions

    def _refuse_outsiders(self, hosts: Sequence[str | Address], constraints: Constraints) -> None:
        """Raise ControlHostError for what the authority that would be made here may not sign for."""
        outside = [host for host in hosts if not constraints.permits(host)]
        if not outside:
            return
        # Naming one of a kind takes the place of the default for that kind.
        kinds = {"--permit-dns": constraints.dns, "--permit-ip": tuple(map(str, constraints.networks))}
        permits = []
        for option, defaults in kinds.items():
            more = [str(host) for host in outside if isinstance(host, str) == (option == "--permit-dns")]
            permits += [f"{option} {one}" for one in (*more, *defaults)] if more else []
        raise ControlHostError(
            f"An authority may sign only for private names and addresses by default, and {outside[0]} is none. "
            f"Make one that may: llmgw ctl cert init-ca --pki {PKI} {' '.join(permits)}  Then run this again."
        )

    def _why_anew(self, held: x509.Certificate | None, wanted: Sequence[str], authority: Authority) -> str | None:
        if held is None:
            return "there is none"
        if not _issued_by(held, authority.root):
            return "the one there is another authority's"
        if missing := [one for one in wanted if one not in alternative_names(held)]:
            return f"the one there lacks {', '.join(missing)}"
        days_left = (held.not_valid_after_utc.timestamp() - self.now) / DAY_S
        if days_left < DAYS_LEFT_MIN:
            return f"the one there holds for {max(days_left, 0.0):.0f} more days"
        try:
            matching_leaf(*self._paths(SERVER_CERT, SERVER_KEY), SERVER_CERT, SERVER_KEY, "server", "")
        except PkiError:
            return "the key beside the one there is another's"
        return None if self._owned(SERVER_KEY) else "the server could not read its key"

    def _wanted(self, constraints: Constraints) -> list[str]:
        """The hosts that were named, all of them; of the machine's own those that the authority may sign for."""
        named = [str(parse_host(one)) for one in self.hosts]
        own = []
        for one in self.own_hosts:
            try:
                host = parse_host(one)
                constraints.check(host)
            except PkiError:
                note = f"The server's certificate is not for {one}: its authority may not sign for that."
                if note not in self.notes:
                    self.notes.append(note)
                continue
            own.append(str(host))
        return list(dict.fromkeys([*named, *own]))

    def _installed_certificate(self) -> x509.Certificate | None:
        if not self.host.path(SERVER_CERT).exists():
            return None
        remedy = "Move it away; it is issued anew then."
        return load_certificates(self.host.path(SERVER_CERT), "server's certificate", remedy)[0]

    # Files.

    def _install_brought(self, folder: Path) -> list[Action]:
        def text(name: str) -> str:
            try:
                return (folder / name).read_text(encoding="ascii")
            except (OSError, UnicodeError) as error:
                raise ControlHostError(f"{folder / name} cannot be read: {error}") from None

        actions = self.host.file(CA, text(CA_FILE), 0o644)
        if self.renews:
            actions += self._pair(RENEWAL_CERT, RENEWAL_KEY, text(RENEWAL), text(RENEWAL_KEY_FILE))
        if (folder / REVOKED).exists():
            actions += self.host.file(REVOKED_HERE, text(REVOKED), 0o644)
        return actions + self._pair(SERVER_CERT, SERVER_KEY, text(SERVER_FILE), text(SERVER_KEY_FILE))

    def _pair(self, cert: str, key: str, cert_pem: str, key_pem: str) -> list[Action]:
        if self.host.text(cert) == cert_pem and self.host.text(key) == key_pem and self._owned(key):
            return []
        what = f"install {cert} and {key} (the key {SERVER_OWNER} 0600)"
        return [Action(what, lambda: self._write_pair(cert, key, cert_pem, key_pem))]

    def _write_pair(self, cert: str, key: str, cert_pem: str, key_pem: str) -> None:
        try:
            install_pair(*self._paths(cert, key), cert_pem, key_pem, self.host.ids(SERVER_OWNER))
        except OSError as error:
            raise ControlHostError(f"{cert} and {key} cannot be written: {error.strerror or error}") from None

    def _owned(self, key: str) -> bool:
        """Whether a key is the server's, and nobody else's to read."""
        return not self.host.file(key, self.host.text(key) or "", 0o600, SERVER_OWNER)

    def _paths(self, cert: str, key: str) -> tuple[str, str]:
        return str(self.host.path(cert)), str(self.host.path(key))

    def _root_of_authority(self) -> str | None:
        """The root that rules here, as PEM; None while there is none."""
        folder = self.brought or self.host.path(PKI)
        if not (folder / CA_FILE).exists():
            return None
        remedy = "Restore it from a backup."
        return cert_to_pem(load_certificates(folder / CA_FILE, "authority's root certificate", remedy)[0])


def _issued_by(certificate: x509.Certificate, root: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _nothing() -> None:
    """Of an action that only a dry run names."""
