"""The file of tenants: what it may say, how a request's tenant is found, and that no message repeats a key."""

import hashlib
from pathlib import Path

import pytest

from gateway.tenants import ANYONE, Tenant, Tenants, load_tenants
from shared.errors import BadRequest, ErrorKind, SettingsError, TailraceError

KEY = "correct-horse-battery"
OTHER = "0123456789abcdef"


def load(folder: Path, text: str) -> Tenants:
    """The tenants of a file with this text."""
    file = folder / "tenants.toml"
    file.write_text(text)
    return load_tenants(str(file))


@pytest.fixture
def two(tmp_path: Path) -> Tenants:
    """One tenant with all there is, one with a hashed key alone."""
    digest = hashlib.sha256(OTHER.encode()).hexdigest()
    return load(
        tmp_path,
        f"""
        [[tenant]]
        name = "shop"
        key = "{KEY}"
        weight = 2
        live_max = 50
        rate_per_s = 0.5
        burst = 3

        [[tenant]]
        name = "lab"
        key_sha256 = "{digest.upper()}"
        """,
    )


def test_a_key_finds_its_tenant(two: Tenants) -> None:
    """As a bearer token or in x-api-key, given in the file as it is or hashed."""
    shop = Tenant("shop", weight=2, live_max=50, rate_per_s=0.5, burst=3)
    assert two.tenant_of({"Authorization": f"Bearer {KEY}"}) == shop
    assert two.tenant_of({"Authorization": f"bearer  {KEY} "}) == shop
    assert two.tenant_of({"x-api-key": KEY}) == shop
    assert two.tenant_of({"x-api-key": OTHER}) == Tenant("lab")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-tenant": "shop"},
        {"Authorization": KEY},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": "Bearer "},
        {"x-api-key": KEY + "x"},
        {"x-api-key": "", "Authorization": f"Bearer {KEY}"},
        {"x-api-key": "\udcff"},
    ],
)
def test_without_a_valid_key_nobody_comes_in(two: Tenants, headers: dict[str, str]) -> None:
    """The text says what to send, and repeats nothing of what came."""
    with pytest.raises(TailraceError) as refused:
        two.tenant_of(headers)
    assert refused.value.kind is ErrorKind.UNAUTHORIZED
    assert "Authorization: Bearer KEY" in refused.value.message
    assert KEY not in refused.value.message


def test_without_a_file_a_name_is_enough() -> None:
    """And no name is anyone."""
    tenants = load_tenants("")
    assert tenants.tenant_of({}) is ANYONE
    assert tenants.tenant_of({"x-tenant": "shop"}) == Tenant("shop")
    for wrong in ("", "-", "a b", "x" * 129, "a:b", "{a}"):
        with pytest.raises(BadRequest, match="x-tenant"):
            tenants.tenant_of({"x-tenant": wrong})


def test_all_mistakes_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    """By the number of the tenant; no key is repeated."""
    with pytest.raises(SettingsError) as wrong:
        load(
            tmp_path,
            f"""
            tenats = 3
            [[tenant]]
            name = "a b"
            key = "short-key"
            weight = 0
            [[tenant]]
            name = "shop"
            key = "{KEY}"
            key_sha256 = "{"0" * 64}"
            color = "red"
            [[tenant]]
            name = "shop"
            key_sha256 = "12"
            live_max = 1.5
            rate_per_s = true
            [[tenant]]
            name = "lab"
            key = "{KEY}"
            burst = 3
            [[tenant]]
            name = "pub"
            key = "{KEY}"
            rate_per_s = nan
            """,
        )
    text = str(wrong.value)
    for words in (
        "there is no 'tenats'",
        "tenant 1: give it a name",
        "tenant 1: its key must be 16",
        "tenant 1: weight is 0",
        "tenant 2: give it either key or key_sha256",
        "tenant 2: there is no 'color'",
        "tenant 3: 'shop' is there already",
        "tenant 3: key_sha256 must be",
        "tenant 3: live_max must be an integer",
        "tenant 3: rate_per_s must be a number",
        "tenant 4: burst means nothing without rate_per_s",
        "tenant 5: its key is that of another tenant",
        "tenant 5: rate_per_s must be a number",
    ):
        assert words in text, text
    assert KEY not in text
    assert "short-key" not in text


@pytest.mark.parametrize("text", ["", "tenant = 3", "[tenant]", f"key = '{KEY}"])
def test_a_file_without_tenants_is_refused(tmp_path: Path, text: str) -> None:
    """It would lock everybody out, or be no TOML; its text is not repeated."""
    with pytest.raises(SettingsError) as wrong:
        load(tmp_path, text)
    assert KEY not in str(wrong.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    """By its path."""
    with pytest.raises(SettingsError, match=r"nowhere\.toml cannot be read"):
        load_tenants(str(tmp_path / "nowhere.toml"))
