"""The log and the report."""

from .._log import Report, Site, auto_log, log_info, logger, report, set_level, sites, warn_once

__all__ = [
    "Report",
    "Site",
    "auto_log",
    "log_info",
    "logger",
    "report",
    "set_level",
    "sites",
    "warn_once",
]
