from __future__ import annotations

from pathlib import Path

import pytest

from chunkstore.stores.aws_profile import aws_settings

KEYS = {"AWS_ACCESS_KEY_ID": "ours", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment with profiles of all kinds."""
    folder = tmp_path / ".aws"
    folder.mkdir()
    (folder / "credentials").write_text(
        "[team]\naws_access_key_id = A\naws_secret_access_key = B%1\n[half]\naws_access_key_id = A\n"
    )
    (folder / "config").write_text(
        "[default]\nregion = eu-west-1\nrole_arn = x\nsource_profile = team\n"
        "[profile team]\nregion = eu-west-9\nendpoint_url = http://h:1\ns3 =\n  max_queue_size = 9\n"
        "[profile role]\nrole_arn = x\n[profile sso]\nsso_session = corp\n[profile process]\ncredential_process = /x\n"
        "[profile place]\nregion = eu-west-2\n"
    )
    return {"HOME": str(tmp_path)}


def test_a_profile_gives_keys_region_and_endpoint(home: dict[str, str]) -> None:
    settings = {"region": "eu-west-9", "endpoint": "http://h:1"}
    keys = {"access_key_id": "A", "secret_access_key": "B%1"}
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        assert aws_settings({**home, name: "team"}) == settings | keys


def test_keys_of_the_environment_go_first_and_are_not_mixed(home: dict[str, str]) -> None:
    """As for the AWS tools. A session token of the environment with the keys of a profile would be
    refused."""
    given = {**home, **KEYS, "AWS_SESSION_TOKEN": "t"}
    assert aws_settings({**given, "AWS_PROFILE": "team"}) == {
        "region": "eu-west-9",
        "endpoint": "http://h:1",
    }
    assert aws_settings(given) == {"region": "eu-west-1"}
    for name in ("role", "gone"):
        assert aws_settings({**given, "AWS_PROFILE": name}) == {}


@pytest.mark.parametrize("name", ["role", "sso", "process", None])
def test_keys_that_are_fetched_are_left_to_the_profile(
    home: dict[str, str], name: str | None
) -> None:
    """Also those of the default profile, before the machine's role is asked for in vain."""
    chosen = {"AWS_PROFILE": name} if name else {}
    assert aws_settings({**home, **chosen}).pop("profile") == (name or "default")


def test_what_is_incomplete_is_told(home: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="has no profile gone"):
        aws_settings({**home, "AWS_PROFILE": "gone"})
    with pytest.raises(ValueError, match="only one of"):
        aws_settings({**home, "AWS_PROFILE": "half"})
    for name in KEYS:
        with pytest.raises(ValueError, match=f"only {name} is in the environment"):
            aws_settings({**home, name: "x"})


def test_the_machine_may_have_a_role_besides(home: dict[str, str]) -> None:
    assert aws_settings({**home, "AWS_PROFILE": "place"}) == {"region": "eu-west-2"}
    assert aws_settings({**home, "AWS_WEB_IDENTITY_TOKEN_FILE": "/t"}) == {"region": "eu-west-1"}


def test_other_files_may_be_named(home: dict[str, str], tmp_path: Path) -> None:
    credentials, config = tmp_path / "keys", tmp_path / "settings"
    credentials.write_text("[default]\naws_access_key_id = C\naws_secret_access_key = D\n")
    config.write_text("[default]\nregion = r\n")
    named = {"AWS_SHARED_CREDENTIALS_FILE": str(credentials), "AWS_CONFIG_FILE": str(config)}
    assert aws_settings({**home, **named}) == {
        "region": "r",
        "access_key_id": "C",
        "secret_access_key": "D",
    }
    credentials.write_text("aws_secret_access_key = not to be shown\n")
    with pytest.raises(ValueError, match="cannot read") as caught:
        aws_settings({**home, **named})
    assert "not to be shown" not in str(caught.value)
