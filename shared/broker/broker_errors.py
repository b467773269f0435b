"""What can go wrong with a command, by what the caller has to know: was it executed?"""

import re

_in_script = re.compile(r"@user_script: ?\d+: -?([A-Z]+) ")
"""Before 7.0 the error of a command within a script stands somewhere in a text of the script's."""


class BrokerError(Exception):
    """Redis could not do what was asked."""


class NotConnected(BrokerError):
    """The command was certainly not executed: there is no connection."""


class OutcomeUnknown(BrokerError):
    """The connection broke while the command was in flight: it may or may not have been executed."""


class Busy(BrokerError):
    """Too many commands are unanswered already; this one was not sent."""


class ReplyError(BrokerError):
    """Redis answered with an error."""

    @property
    def code(self) -> str:
        """The error in one word: NOSCRIPT, NOGROUP, OOM, LOADING ..."""
        text = str(self)
        within = _in_script.search(text)
        return within[1] if within else text.split(" ", 1)[0]


class NotUsable(BrokerError):
    """There is a server, but it must not be used: a replica, or one that evicts."""
