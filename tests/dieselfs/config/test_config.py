"""Where things are: precedence, origins, and configuration files that are wrong."""

from pathlib import Path

import pytest

from dieselfs.config import Config, config_file, load_config
from dieselfs.errors import ConfigError
from metadata.url_secrets import redacted

PROFILES = """
profile = "cluster"

[profiles.cluster]
store = "file:///shared/store"
index = "redis+cluster://n1:7000,n2:7000"
snapshots = "/local/snapshots"

[profiles.lab]
index = "redis://lab:6379/0"
"""


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_DATA_HOME": str(tmp_path / "data"),
    }


def write_config(home: dict[str, str], text: str) -> None:
    folder = Path(home["XDG_CONFIG_HOME"], "dieselfs")
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(text)


def origins(config: Config) -> list[str]:
    return [config.store.origin, config.index.origin, config.snapshots.origin]


def test_without_anything_all_is_embedded(home: dict[str, str], tmp_path: Path) -> None:
    config = load_config(environment=home)
    assert config.store.value == f"file://{tmp_path}/data/dieselfs/store"
    assert config.index.value == f"lmdb://{tmp_path}/data/dieselfs/index"
    assert config.snapshot_folder == tmp_path / "data/dieselfs/snapshots"
    assert origins(config) == ["default"] * 3
    assert config.store.is_default


def test_xdg_variables_that_are_empty_or_relative_count_as_unset(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "XDG_DATA_HOME": "relative", "XDG_CONFIG_HOME": ""}
    assert (
        load_config(environment=environment).snapshot_folder
        == tmp_path / ".local/share/dieselfs/snapshots"
    )


@pytest.mark.parametrize(
    ("mode", "index", "warned"),
    [
        (0o644, "redis://:secret@h", True),
        (0o600, "redis://:secret@h", False),
        (0o640, "redis://:secret@h", False),
        (0o644, "redis://h", False),
    ],
)
def test_a_password_that_all_users_may_read_is_warned_of_once(
    home: dict[str, str], caplog: pytest.LogCaptureFixture, mode: int, index: str, warned: bool
) -> None:
    write_config(home, f'profile = "p"\n[profiles.p]\nindex = "{index}"\n')
    file = config_file(home)
    file.chmod(mode)
    for _ in range(2):
        load_config(environment=home)
    said = f"{file} has a password, and every user can read it: chmod 600 {file}"
    assert caplog.messages == [said] * warned


def test_flags_beat_variables_beat_profile_beat_defaults(home: dict[str, str]) -> None:
    write_config(home, PROFILES)
    home |= {"DIESELFS_STORE": "file:///variable", "DIESELFS_INDEX": "redis://variable"}
    config = load_config(store="file:///flag", environment=home)
    assert [config.store.value, config.index.value] == ["file:///flag", "redis://variable"]
    assert config.snapshots.value == "/local/snapshots"
    assert origins(config)[:2] == ["--store", "$DIESELFS_INDEX"]
    assert origins(config)[2].startswith("profile 'cluster' in ")


def test_a_profile_is_named_by_flag_variable_or_file(home: dict[str, str]) -> None:
    write_config(home, PROFILES)
    assert load_config(environment=home).index.value.startswith("redis+cluster://")
    assert (
        load_config(environment=home | {"DIESELFS_PROFILE": "lab"}).index.value
        == "redis://lab:6379/0"
    )
    both = home | {"DIESELFS_PROFILE": "cluster"}
    config = load_config(profile="lab", environment=both)
    assert config.index.value == "redis://lab:6379/0"
    assert config.store.is_default


def test_empty_variables_count_as_unset(home: dict[str, str]) -> None:
    assert load_config(environment=home | {"DIESELFS_STORE": ""}).store.is_default


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[profiles.p]\nstore = 1", "store is not a string"),
        ("[profiles.p]\nstroe = 'x'", "unknown key 'stroe'"),
        ("[profiles", "config.toml"),
        ("profiles = 3", "no profile 'p'"),
    ],
)
def test_a_wrong_file_is_refused(home: dict[str, str], text: str, said: str) -> None:
    write_config(home, text)
    with pytest.raises(ConfigError, match=said):
        load_config(profile="p", environment=home)


def test_an_unknown_profile_is_refused_with_those_there_are(home: dict[str, str]) -> None:
    write_config(home, PROFILES)
    with pytest.raises(ConfigError) as caught:
        load_config(profile="clutser", environment=home)
    assert "cluster, lab" in str(caught.value.hint)


@pytest.mark.parametrize("url", ["redis://me:secret@host", "redis://host/0?password=secret"])
def test_a_password_on_the_command_line_is_refused(home: dict[str, str], url: str) -> None:
    with pytest.raises(ConfigError, match="visible to every user") as caught:
        load_config(index=url, environment=home)
    assert "secret" not in f"{caught.value}{caught.value.hint}"


def test_passwords_are_never_shown(home: dict[str, str]) -> None:
    config = load_config(environment=home | {"DIESELFS_INDEX": "redis://me:s3cr:et@host/0"})
    assert config.index.value == "redis://me:s3cr:et@host/0"
    assert "et@" not in f"{config.index} {config.index!r} {config!r}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://me:pw@h:1/0", "redis://me:***@h:1/0"),
        ("redis://:pw@h", "redis://:***@h"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        (
            "a redis://u:p@h and redis+cluster://u:q@h,i",
            "a redis://u:***@h and redis+cluster://u:***@h,i",
        ),
        ("dl://d/a:b@c", "dl://d/a:b@c"),
        ("redis://:p@ss@h", "redis://:***@h"),
        ("redis://:p/w?x@h", "redis://:***@h"),
        ("redis://h:1/0?db=2&password=a@b: wrong", "redis://h:1/0?db=2&password=*** wrong"),
        ("redis://h/0?password=***: wrong", "redis://h/0?password=***: wrong"),
        ("redis://h/0?p%61ssword=x", "redis://h/0?p%61ssword=***"),
        ("file:///a?token=1", "file:///a?token=1"),
    ],
)
def test_redaction(text: str, shown: str) -> None:
    assert redacted(text) == shown
