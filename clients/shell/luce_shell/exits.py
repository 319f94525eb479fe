"""Exit codes of the commands: by who must act, in the numbers of sysexits.h."""

from __future__ import annotations

from luce.errors import LuceError

USAGE = 2
NO_FILE = 74
INTERRUPTED = 130
PIPE_CLOSED = 141

BY_ACTOR = {"caller": 65, "peer": 76, "operator": 78, "supervisor": 70}
BY_NAME = {
    "unknown_parameter": USAGE,
    "missing_parameter": USAGE,
    "bad_parameter": USAGE,
    "not_running": 69,
    "connection_lost": 69,
    "busy": 75,
    "deadline": 75,
    "cancelled": 75,
    "shutting_down": 75,
    "not_permitted": 77,
}
HELP = """\
Exit codes:
   0  done
   2  wrong use of the command or of a parameter
  65  it cannot be done as it was asked (too long, unknown model, ...)
  69  no daemon, or it went away
  70  the engine failed: ask again
  74  a file of yours cannot be read or written: a fragment, the conversation log, the output
  75  try again later
  76  daemon and client do not understand each other
  77  not permitted
  78  the model or the machine must be put right by its operator
 130  interrupted (Ctrl-C)
 141  nobody reads the output"""


class Failure(Exception):
    """Something on this side of the socket cannot be done: what, what to do about it, and the exit code."""

    def __init__(self, message: str, remedy: str, exit_code: int) -> None:
        super().__init__(message)
        self.remedy = remedy
        self.exit_code = exit_code


def exit_code(error: LuceError) -> int:
    return BY_NAME.get(error.name) or BY_ACTOR[error.code.actor]
