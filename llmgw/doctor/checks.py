"""The list of checks. A new check is a function in a file of this room and one line here."""

from __future__ import annotations

from llmgw.doctor.address import check_address
from llmgw.doctor.certificate import check_certificate, check_key
from llmgw.doctor.check import Check
from llmgw.doctor.engine_user import check_engine_user
from llmgw.doctor.engines import check_engines
from llmgw.doctor.fabric_tools import check_fabric_tools
from llmgw.doctor.hardware import LIMIT_S as HARDWARE_LIMIT_S
from llmgw.doctor.hardware import check_hardware
from llmgw.doctor.packages import LIMIT_S as PACKAGES_LIMIT_S
from llmgw.doctor.packages import RememberedPackages, check_packages
from llmgw.doctor.ports import check_ports
from llmgw.doctor.server import LIMIT_S as SERVER_LIMIT_S
from llmgw.doctor.server import check_clock, check_server
from llmgw.doctor.weights import check_weights
from llmgw.doctor.work_dir import check_work_dir

HARDWARE = Check("hardware", check_hardware, HARDWARE_LIMIT_S)

CHECKS = (
    Check("certificate", check_certificate),
    HARDWARE,
    Check("fabric-tools", check_fabric_tools),
    Check("address", check_address),
    Check("engines", check_engines),
    Check("engine-user", check_engine_user),
    Check("packages", check_packages, PACKAGES_LIMIT_S),
    Check("ports", check_ports),
    Check("work-dir", check_work_dir),
    Check("weights", check_weights),
    Check("server", check_server, SERVER_LIMIT_S),
)

_BESIDE_AGENT = ("fabric-tools", "engines", "ports", "work-dir", "weights")

BESIDE_AGENT = (
    *(check for check in CHECKS if check.name in _BESIDE_AGENT),
    Check("key", check_key),
    Check("packages", RememberedPackages().check, PACKAGES_LIMIT_S),
    Check("clock", check_clock, SERVER_LIMIT_S),
)
"""What an agent has looked at beside its heartbeats, in which it tells of hardware and certificates itself."""
