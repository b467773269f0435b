"""URLs of Redis: several in one setting, and their secrets in no log."""

import pytest

from shared import redis_urls


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("redis://a", ["redis://a"]),
        ("redis://a:6379,redis://b:6379", ["redis://a:6379", "redis://b:6379"]),
        (" redis://a , unix:///run/r.sock,", ["redis://a", "unix:///run/r.sock"]),
        ("redis://:pass,word@a,rediss://b", ["redis://:pass,word@a", "rediss://b"]),
        ("unix:///with,comma.sock", ["unix:///with,comma.sock"]),
        ("", []),
    ],
)
def test_commas_separate_urls_and_nothing_else(text: str, urls: list[str]) -> None:
    """A password or a path may have commas of its own."""
    assert redis_urls.split(text) == urls


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://:s3cret@a:6379/0", "redis://a:6379/0"),
        ("redis://bob:s3cret@a", "redis://a"),
        ("redis://bob@a", "redis://a"),
        ("redis://:s3@cret@a", "redis://a"),
        ("redis://:s3/cret@a:1", "redis://a:1"),
        ("redis://:s3,cret@a", "redis://a"),
        ("redis://:s3cret@a/0,redis://:0ther@b/0", "redis://a/0,redis://b/0"),
        ("redis://a/0,rediss://:s3cret@b/0, redis://c", "redis://a/0,rediss://b/0, redis://c"),
        ("unix://bob:s3cret@/run/r.sock?db=3", "unix:///run/r.sock?db=3"),
        ("unix:///run/r@1.sock", "unix:///run/r@1.sock"),
        ("unix:///run/r.sock?db=3&password=s3cret&username=bob", "unix:///run/r.sock?db=3&password=...&username=..."),
        ("redis://a?password=s3cret,redis://b", "redis://a?password=...,redis://b"),
        ("--redis=redis://:s3cret@a", "--redis=redis://a"),
        ("http://bob:s3cret@a/x", "http://a/x"),
        ("redis://a:6379/0", "redis://a:6379/0"),
        ("no url: bob@example.org", "no url: bob@example.org"),
    ],
)
def test_secrets_are_left_out(text: str, shown: str) -> None:
    """Of every URL in a text, also where the password breaks the rules for URLs."""
    assert redis_urls.without_secrets(text) == shown
    assert redis_urls.without_secrets(shown) == shown


@pytest.mark.parametrize(
    "url",
    ["redis://a", "redis://a:1/3", "rediss://bob:x@a:65535", "unix:///run/r.sock", "redis://[::1]:6379", "redis://"],
)
def test_a_right_url_has_no_mistake(url: str) -> None:
    """What redis-py reads, we take."""
    assert redis_urls.mistake(url) == ""


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", "begin it with redis://"),
        ("localhost:6379", "begin it with redis://"),
        ("http://a", "begin it with redis://"),
        ("redis://a:port", "port"),
        ("redis://a:65536", "port"),
        ("redis://a:0", "port"),
        ("redis://:s3/cret@a:6379", "%2F for /"),
        ("unix://", "path of the socket"),
    ],
)
def test_a_mistake_is_told_with_what_to_do(url: str, told: str) -> None:
    """And never with the secret."""
    assert told in redis_urls.mistake(url)
    assert "s3" not in redis_urls.mistake(url)
