"""Every knob of the router, and the only reader of the configuration file and of the environment."""

from router.settings.auth import AuthSettings, ClientKey
from router.settings.calibration import CalibrationSettings
from router.settings.configuration import Settings
from router.settings.fleet import DiscoverySettings, HealthSettings, PollingSettings
from router.settings.limits import LimitSettings
from router.settings.mock import MockGroup, MockSettings
from router.settings.pairs import Pair
from router.settings.placing import Given
from router.settings.pools import PoolSettings
from router.settings.refusals import SettingsError
from router.settings.server import RequestLogSettings, ServerSettings, UsageSettings
from router.settings.sources import load
from router.settings.timeouts import RetrySettings, TimeoutSettings
from router.settings.workers import WorkerSettings, parse_workers, read_workers_file
from router.settings.workload import WorkloadSettings

__all__ = [
    "AuthSettings",
    "CalibrationSettings",
    "ClientKey",
    "DiscoverySettings",
    "Given",
    "HealthSettings",
    "LimitSettings",
    "MockGroup",
    "MockSettings",
    "Pair",
    "PollingSettings",
    "PoolSettings",
    "RequestLogSettings",
    "RetrySettings",
    "ServerSettings",
    "Settings",
    "SettingsError",
    "TimeoutSettings",
    "UsageSettings",
    "WorkerSettings",
    "WorkloadSettings",
    "load",
    "parse_workers",
    "read_workers_file",
]
