"""The list of checks. A new check is a function in a file of this room and one line here."""

from __future__ import annotations

from llmgw.doctor.address import check_address
from llmgw.doctor.certificate import check_certificate
from llmgw.doctor.check import Check
from llmgw.doctor.engine_user import check_engine_user
from llmgw.doctor.engines import check_engines
from llmgw.doctor.hardware import LIMIT_S as HARDWARE_LIMIT_S
from llmgw.doctor.hardware import check_hardware
from llmgw.doctor.ports import check_ports
from llmgw.doctor.server import LIMIT_S as SERVER_LIMIT_S
from llmgw.doctor.server import check_server
from llmgw.doctor.work_dir import check_work_dir

CHECKS = (
    Check("certificate", check_certificate),
    Check("hardware", check_hardware, HARDWARE_LIMIT_S),
    Check("address", check_address),
    Check("engines", check_engines),
    Check("engine-user", check_engine_user),
    Check("ports", check_ports),
    Check("work-dir", check_work_dir),
    Check("server", check_server, SERVER_LIMIT_S),
)
