"""What can go wrong, and whose fault it is.

    AgentgymError
    ├── UsageError              the caller's: bad config, unknown name, missing folder (exit code 2)
    │   └── ConfigError
    ├── InfrastructureError     ours or the machine's: never a reward
    │   ├── EngineError         the inference engine failed to start or to answer
    │   ├── LearnerError        the training engine failed
    │   ├── SandboxError        a sandbox failed
    │   └── DeadlineError       something took longer than it may
    ├── TaskError               the task or its verifier is broken: never a reward
    └── GuardError              a guard rail stopped the run

What the *policy* does wrong (a parse error, running out of steps, time or tokens) is no exception: it is an
observation or the end of an episode, and the policy pays for it as the config says.
"""


class AgentgymError(Exception):
    """Base of all errors raised on purpose; its message is one line that says what to do."""

    exit_code = 1


class UsageError(AgentgymError):
    """The caller asked for something that cannot be: fix the call or the config."""

    exit_code = 2


class ConfigError(UsageError):
    """An unknown key, a wrong type or a value out of range."""


class InfrastructureError(AgentgymError):
    """The machine or a service failed; whatever was in flight has no reward."""


class EngineError(InfrastructureError):
    """The inference engine failed to start or to answer."""


class LearnerError(InfrastructureError):
    """The training engine failed."""


class SandboxError(InfrastructureError):
    """A sandbox failed to start or died."""


class DeadlineError(InfrastructureError):
    """Something took longer than it may."""


class TaskError(AgentgymError):
    """A task or its verifier is broken."""


class GuardError(AgentgymError):
    """A guard rail stopped the run."""
