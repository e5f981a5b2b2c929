"""The methods that HTTP knows, and what is said of others. Any token is a method to the judge."""

from __future__ import annotations

import difflib

from impyard.addon.policyfile import METHODS

# The registry of HTTP methods (IANA) beyond those of the web, and what caches and servers use.
_REGISTERED_TEXT = """
ACL BASELINE-CONTROL BIND CHECKIN CHECKOUT COPY LABEL LINK LOCK MERGE MKACTIVITY MKCALENDAR MKCOL MKREDIRECTREF
MKWORKSPACE MOVE ORDERPATCH PRI PROPFIND PROPPATCH QUERY REBIND REPORT SEARCH UNBIND UNCHECKOUT UNLINK UNLOCK UPDATE
UPDATEREDIRECTREF VERSION-CONTROL PURGE BAN NOTIFY SUBSCRIBE UNSUBSCRIBE M-SEARCH
"""
_REGISTERED = frozenset(_REGISTERED_TEXT.split())


def is_known(name: str) -> bool:
    """Whether it is a method that HTTP, or some registered extension of it, has."""
    return name in METHODS or name in _REGISTERED or name == "CONNECT"


def meant_by(name: str) -> str:
    """The known method that is nearly the same, "" where there is none."""
    close = difflib.get_close_matches(name.upper(), [*METHODS, *sorted(_REGISTERED)], 1, 0.6)
    return close[0] if close else ""


def no_method(name: str) -> str:
    """What is said of a method that is not known."""
    return f'method "{name}" is none that HTTP knows'


def remark(name: str) -> str:
    """The same with what may have been meant; "" for a known method."""
    if is_known(name):
        return ""
    meant = meant_by(name)
    return no_method(name) + (f"; did you mean {meant}?" if meant else "")
