"""What ssh, sudo and a node's shell say when something is wrong, as sentences with what to do.

The words are those of OpenSSH (sshconnect.c, sshconnect2.c, clientloop.c), of sudo (plugins/sudoers) and of
strerror(3), in English: commands run with LC_ALL=C.
"""

from __future__ import annotations

import re

from llmgw.onboarding.errors import OnboardError

SSH_FAILED = 255
"""ssh's own exit code (ssh(1)); none of our scripts ends with it."""
_SHOWN_CHARS = 300
_BY_THE_WAY = ("Warning: Permanently added", "** ", "@@@", "debug", "sudo: unable to resolve host")


def explain_ssh(said: str, address: str, node_id: str) -> OnboardError:
    """The sentence for an ssh that ended with 255; `said` is its stderr."""
    for pattern, sentence in _SSH:
        if found := re.search(pattern, said, re.IGNORECASE):
            given = {name: text for name, text in found.groupdict().items() if text}
            return OnboardError(
                sentence.format(
                    **{"file": "", "line": "", "who": address, **given}, address=address, node=node_id
                )
            )
    words = last_words(said) or "it did not say why"
    return OnboardError(
        f"The connection to {address} failed: {words}. Try it by hand: ssh {address} true. Run this again "
        "afterwards: it goes on where it was."
    )


def explain_sudo(said: str, address: str) -> OnboardError:
    """The sentence for a user who is neither root nor becomes root without being asked."""
    for pattern, sentence in _SUDO:
        if re.search(pattern, said, re.IGNORECASE):
            return OnboardError(sentence.format(address=address))
    return OnboardError(
        f"On {address} we are not root and do not become it with `sudo -n`: {last_words(said) or 'no answer'}. "
        "Use --ssh-user root, or a user who may run sudo without a password."
    )


def explain_remote(name: str, code: int, said: str, node_id: str) -> str:
    """The sentence for a script that failed on the node with this exit code; `said` is its stderr."""
    for pattern, sentence in _NODE:
        if found := re.search(pattern, said, re.IGNORECASE):
            given = {key: text or "" for key, text in found.groupdict().items()}
            where = given.get("where") or "its disk"
            return f"{node_id}: {name} failed: " + sentence.format(where=where)
    words = last_words(said, lines_max=5) or f"exit code {code}, without a word"
    return f"{node_id}: {name} failed: {words}"


def last_words(said: str, lines_max: int = 1) -> str:
    """The last lines that say something, on one line without a full stop, bounded, and fit for a terminal."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(_BY_THE_WAY)] or lines
    return printable("; ".join(line[:_SHOWN_CHARS] for line in kept[-lines_max:])).rstrip(".")


def printable(text: str) -> str:
    """What another machine says, without what a terminal would act on."""
    return "".join(char if char.isprintable() else " " for char in text)


_AGAIN = "Then run this again: it goes on where it was."
_SSH = (
    (
        r"Offending \S+ key in (?P<file>\S+?):(?P<line>\d+)[\s\S]*host key for (?P<who>\S+) has changed",
        "The host key of {address} is not the one remembered in {file} line {line}: the machine was installed "
        "anew, or another one answers in its place. If it was, forget the old key (ssh-keygen -f {file} -R "
        "{who!r}) and run this again; if not, find out who answers. Nothing was sent.",
    ),
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key for (?P<who>\S+) has changed",
        "The host key of {address} is not the one remembered: the machine was installed anew, or another one "
        "answers in its place. If it was, forget the old key (ssh-keygen -R {who!r}) and run this again; if not, "
        "find out who answers. Nothing was sent.",
    ),
    (
        r"REVOKED HOST KEY|host key for \S+ (?:was|is marked as) revoked",
        "The host key of {address} is marked as revoked in the known_hosts file. Nothing was sent.",
    ),
    (
        r"No \S+ host key is known for|Host key verification failed",
        "The host key of {address} is not known here, and ssh's configuration wants it known. Look at it and "
        "remember it: ssh {address} true (or ssh-keyscan, and compare the fingerprint on the node's console).",
    ),
    (
        r"UNPROTECTED PRIVATE KEY FILE[\s\S]*?for '(?P<file>[^']+)'",
        "ssh does not use the key {file} because others may read it: chmod 600 {file}",
    ),
    (
        r"Too many authentication failures",
        "{address} refused us after too many keys: name the right one in ssh's configuration "
        "(IdentityFile and IdentitiesOnly yes for this host).",
    ),
    (
        r"(?P<who>\S+@\S+): Permission denied \([^)]*(?:password|keyboard-interactive)[^)]*\)",
        "{who} wants a password, which is never typed or passed here. Let a key in first: ssh-copy-id {who} "
        "(or load one into the agent: ssh-add).",
    ),
    (
        r"(?P<who>\S+@\S+): Permission denied \(",
        "{who} takes none of our keys. Put one into its authorized_keys, or load the right one into the agent "
        "(ssh-add), or say who to be with --ssh-user.",
    ),
    (
        r"Password change required|password has expired|change your password",
        "The password of that user on {address} has expired, and ssh lets nobody in before it is changed: "
        "ssh {address}, or use another user (--ssh-user).",
    ),
    (
        r"Could not resolve hostname",
        "The name {address} is not known here: give --addr an IP address, or a host of ssh's configuration.",
    ),
    (
        r"Connection refused",
        "Nothing listens for ssh at {address}: the machine is still starting, or its sshd is not installed or "
        "not running (systemctl status ssh on the node).",
    ),
    (
        r"No route to host|Network is unreachable",
        "There is no way to {address} from here: is the machine on, and is the address right?",
    ),
    (
        r"timed out|not responding",
        "{address} does not answer: is the machine on, is the address right, and does a firewall stand between?",
    ),
    (
        r"This account is currently not available|nologin",
        "That user may not run commands on {address} (its shell is nologin): name another with --ssh-user.",
    ),
    (
        r"no matching (?:host key type|key exchange method|cipher|MAC) found[^\n]*",
        "This host's ssh and the sshd of {address} have no method in common: one of them is too old.",
    ),
    (
        r"Broken pipe|closed by remote host|Connection reset|Connection closed",
        "The connection to {address} broke off. What was sent is either in place or gone again. Run this again: "
        "it goes on where it was.",
    ),
)
_SUDO = (
    (
        r"a password is required|a terminal is required",
        "sudo on {address} asks for a password, which is never typed or passed here. Use --ssh-user root, or let "
        "that user become root without one (a file in /etc/sudoers.d: USER ALL=(ALL) NOPASSWD: ALL).",
    ),
    (
        r"not in the sudoers file|not allowed to (?:execute|run sudo)|may not run sudo",
        "That user may not become root on {address}: name another with --ssh-user.",
    ),
    (
        r"must have a tty",
        "sudo on {address} wants a terminal (requiretty in its sudoers), which there is none of here: take that "
        "out, or use --ssh-user root.",
    ),
    (
        r"sudo: (?:command )?not found|sudo: No such file",
        "We are not root on {address} and there is no sudo there: use --ssh-user root, or install sudo.",
    ),
    (
        r"setuid root|no new privileges",
        "sudo on {address} cannot make anybody root (it is not setuid root, or nothing may be there): use "
        "--ssh-user root.",
    ),
)
_NODE = (
    (
        r"(?:(?:'|‘)?(?P<where>/[^\s'’:]*)(?:'|’)?: )?(?:No space left on device|Wrote only \d+ of \d+ bytes)",
        f"no space is left on {{where}}. Make room (df -h, journalctl --vacuum-size=200M). {_AGAIN}",
    ),
    (r"Disk quota exceeded", f"the disk quota there is used up. {_AGAIN}"),
    (
        r"Read-only file system",
        f"a file system there is read-only; after an error of its disk it is remounted so (dmesg). {_AGAIN}",
    ),
    (r"tar: (?:command )?not found", f"there is no tar on the node: install it. {_AGAIN}"),
)
