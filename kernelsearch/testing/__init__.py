"""Contract tests and fakes for third-party parts."""
