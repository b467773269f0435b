"""The scenarios that come with the lineup, a file each. `bench.lineup.scenario` says what such a file has."""
