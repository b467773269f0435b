"""Webhooks, the pure parts: which addresses are allowed, what is sent, and when it is tried again."""

import hashlib
import hmac
import json

import pytest

from gateway.webhooks import AllowedHosts, allowed_hosts, delay_ms, message, signature
from shared.broker.hooks import Ended
from shared.errors import BadRequest, SettingsError
from shared.keys import Queue
from shared.settings import GatewaySettings

HOSTS = AllowedHosts("hooks.example.com, *.shop.example.com,local:8443, any.example.com:*, [::1]:9000, 10.0.0.5")


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example.com/x?y=z",
        "http://HOOKS.example.com",
        "https://eu.shop.example.com/",
        "https://local:8443/a",
        "http://any.example.com:1234",
        "http://[::1]:9000/",
        "http://10.0.0.5/",
    ],
)
def test_an_address_that_a_pattern_allows_may_be_used(url: str) -> None:
    """Without a port in the pattern, the usual one of http and https."""
    assert HOSTS.check(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/",
        "https://shop.example.com/",
        "https://hooks.example.com:8443/",
        "https://hooks.example.com.evil.com/",
        "https://evil.com/hooks.example.com",
        "https://evil.com#hooks.example.com",
        "https://hooks.example.com@evil.com/",
        "https://user:pw@hooks.example.com/",
        "https://local/",
        "http://local:443/",
        "http://[::1]/",
        "http://169.254.169.254/latest",
        "ftp://hooks.example.com/",
        "file:///etc/passwd",
        "hooks.example.com",
        "",
        "http://",
        "http://hooks.example.com:99999/",
        "http://[::1",
        "https://hooks.example.com/" + "x" * 2048,
    ],
)
def test_every_other_address_is_refused(url: str) -> None:
    """Whatever it looks like."""
    with pytest.raises(BadRequest):
        HOSTS.check(url)


def test_without_the_setting_no_address_is_allowed() -> None:
    """And the refusal names it."""
    nobody = AllowedHosts("")
    assert not nobody
    with pytest.raises(BadRequest, match="webhook_hosts"):
        nobody.check("https://hooks.example.com/")


def test_hosts_need_a_secret() -> None:
    """An unsigned webhook could come from anyone."""
    assert not allowed_hosts(GatewaySettings())
    assert allowed_hosts(GatewaySettings(webhook_hosts="a", webhook_secret="s"))
    with pytest.raises(SettingsError, match="TAILRACE_WEBHOOK_SECRET"):
        allowed_hosts(GatewaySettings(webhook_hosts="a"))


def test_a_message_says_how_the_job_ended_and_where_it_is() -> None:
    """An error only if there is one."""
    queue = Queue("m", "3")
    done = json.loads(message(queue, "id-1", Ended("DONE", b"=...", "")))
    assert done == {
        "id": "id-1", "model": "m", "version": "3", "status": "done", "location": "/v2/models/m/versions/3/jobs/id-1",
    }  # fmt: skip
    late = json.loads(message(queue, "id-1", Ended("EXPIRED", b"!deadline|too late", "")))
    assert (late["status"], late["error"]) == ("expired", "too late")
    assert json.loads(message(queue, "id-1", Ended("FAILED", b"", "")))["error"] == ""


def test_a_signature_covers_time_and_body() -> None:
    """HMAC-SHA256 of both, as receivers compute it."""
    signed = hmac.new(b"secret", b'1700000000.{"id":"x"}', hashlib.sha256).hexdigest()
    assert signature("secret", 1_700_000_000, b'{"id":"x"}') == f"t=1700000000,v1={signed}"


def test_each_pause_is_twice_as_long_up_to_a_minute() -> None:
    """Less up to a half, by chance."""
    for tries, longest in ((1, 1_000), (2, 2_000), (5, 16_000), (7, 60_000), (1000, 60_000)):
        pauses = [delay_ms(tries) for _ in range(200)]
        assert longest // 2 <= min(pauses) < max(pauses) <= longest
