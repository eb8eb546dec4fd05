"""Who knows the secret of the same task is let in, on both sides; nobody else is, whatever they
have recorded."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.cache.ports.peer_settings import PeerSettings, StaticPeers
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.wire import handshake
from dieselfs.cache.wire.frame_header import PREFIX_BYTES, BadFrame, frame, lead_of
from dieselfs.cache.wire.frames import encode_request
from dieselfs.cache.wire.handshake import (
    MAX_HANDSHAKE_BYTES,
    ClientHandshake,
    ServerHandshake,
    bytes_that_follow,
)
from dieselfs.cache.wire.messages import Ping
from dieselfs.errors import PeerFailed, PeerRefused
from tests.dieselfs.cache.wire.golden_frames import (
    SECRET,
    TASK,
    OldClient,
    OldServer,
    SecondClient,
    SecondServer,
    client,
    server,
    session,
)

OTHER_SECRET = TaskSecret(b"another secret of a task")
HELLO, CHALLENGE, PROOF, WELCOME, REFUSED = range(32, 37)


def fields_of(frame: bytes) -> list[object]:
    _, _, *fields = msgpack.unpackb(frame[PREFIX_BYTES:])
    return list(fields)


def made(kind: int, *fields: object) -> bytes:
    """A frame with the right checksum, as anybody can make it."""
    return frame(lead_of(kind, len(fields)), 0, fields)  # type: ignore[arg-type]


def test_both_sides_are_convinced() -> None:
    asking, serving = client(), server()
    frames = session(asking, serving)
    assert serving.client == "node-2 4711"
    assert serving.refusal == b""
    assert max(map(len, frames.values())) <= MAX_HANDSHAKE_BYTES
    for said in frames.values():
        assert bytes_that_follow(said[:PREFIX_BYTES]) == len(said) - PREFIX_BYTES


@pytest.mark.parametrize(
    ("asks", "serves", "version"),
    [
        (ClientHandshake, ServerHandshake, 3),
        (SecondClient, ServerHandshake, 2),
        (ClientHandshake, SecondServer, 2),
        (OldClient, ServerHandshake, 1),
        (ClientHandshake, OldServer, 1),
        (OldClient, OldServer, 1),
    ],
)
def test_the_newest_version_that_both_speak_is_taken(
    asks: type[ClientHandshake], serves: type[ServerHandshake], version: int
) -> None:
    asking, serving = client(made=asks), server(made=serves)
    session(asking, serving)
    assert asking.version == serving.version == version


def test_frames_are_taken_as_views_too() -> None:
    asking, serving = client(), server()
    challenge = serving.challenge(memoryview(bytearray(asking.hello())))
    welcome = serving.welcome(memoryview(asking.prove(memoryview(bytearray(challenge)))))
    asking.check_welcome(memoryview(welcome))


def test_the_longest_names_fit() -> None:
    longest = "ü" * 127 + "x"
    asking = ClientHandshake(SECRET, longest, longest, "m" * 64, b"c" * 32)
    frames = session(asking, ServerHandshake(SECRET, longest, "m" * 64, b"s" * 32))
    assert max(map(len, frames.values())) <= MAX_HANDSHAKE_BYTES


class TestRefusals:
    def refused(self, asking: ClientHandshake, serving: ServerHandshake) -> tuple[str, str]:
        """What the server says, and what the client is told."""
        with pytest.raises(PeerRefused) as here:
            serving.welcome(asking.prove(serving.challenge(asking.hello())))
        said = serving.refusal
        assert len(said) <= MAX_HANDSHAKE_BYTES
        reader = asking.check_welcome if asking._transcript else asking.prove
        with pytest.raises(PeerRefused) as there:
            reader(said)
        assert isinstance(there.value, PeerFailed)
        return str(here.value), str(there.value)

    def test_another_secret(self) -> None:
        here, there = self.refused(client(OTHER_SECRET), server())
        assert "secret" in here
        assert "secret" in there

    def test_another_task(self) -> None:
        here, there = self.refused(client(task="cifar"), server())
        assert "different tasks" in here
        assert "different tasks" in there
        assert TASK not in here + there

    def test_another_member(self) -> None:
        here, there = self.refused(client(peer="node-7"), server())
        assert "another member listens" in here
        assert "another member listens" in there

    def test_a_refusal_says_no_more_than_its_kind(self) -> None:
        serving = server()
        with pytest.raises(PeerRefused):
            serving.challenge(client(task="cifar").hello())
        assert fields_of(serving.refusal) == ["task", 1, 3]

    @pytest.mark.parametrize(("newest", "oldest"), [(3, 2), (7, 7)])
    def test_no_version_in_common(
        self, monkeypatch: pytest.MonkeyPatch, newest: int, oldest: int
    ) -> None:
        """Both say which versions are spoken, on both sides."""
        monkeypatch.setattr(handshake, "PROTOCOL_VERSION", newest)
        monkeypatch.setattr(handshake, "OLDEST_VERSION", oldest)
        asking = client(made=type("Later", (ClientHandshake,), {"newest": newest}))
        hello = asking.hello()
        monkeypatch.setattr(handshake, "PROTOCOL_VERSION", 1)
        monkeypatch.setattr(handshake, "OLDEST_VERSION", 1)
        serving = server(made=OldServer)
        with pytest.raises(PeerRefused, match=f"versions {oldest} to {newest} .* this one 1 to 1"):
            serving.challenge(hello)
        monkeypatch.setattr(handshake, "PROTOCOL_VERSION", newest)
        monkeypatch.setattr(handshake, "OLDEST_VERSION", oldest)
        with pytest.raises(PeerRefused, match=f"versions 1 to 1 .* this one {oldest} to {newest}"):
            asking.prove(serving.refusal)

    def test_a_later_version_may_speak_this_one_too_and_say_more(self) -> None:
        secret, hello = SECRET, client().hello()
        fields = fields_of(hello)
        later = made(HELLO, 1, 4, *fields[2:], "a field of version 4")
        serving = server()
        challenge = serving.challenge(later)
        assert fields_of(challenge)[0] == serving.version == 3
        serving.welcome(made(PROOF, secret.proof(b"client", later + challenge)))

    def test_a_version_of_the_future_is_refused_and_not_misread(self) -> None:
        fields = fields_of(client().hello())
        serving = server()
        with pytest.raises(PeerRefused, match="versions 9 to 12"):
            serving.challenge(made(HELLO, 9, 12, *[None] * len(fields[2:])))
        assert serving.refusal

    def test_a_downgrade_on_the_way_is_found(self) -> None:
        """Who changes the versions that are offered changes what is proved."""
        asking, serving = client(), server()
        changed = made(HELLO, 1, 1, *fields_of(asking.hello())[2:])
        with pytest.raises(PeerRefused, match="secret"):
            serving.welcome(asking.prove(serving.challenge(changed)))

    def test_a_server_that_does_not_know_the_secret(self) -> None:
        """It lets everybody in; the client does not stay."""
        asking, serving = client(), server(OTHER_SECRET)
        challenge = serving.challenge(asking.hello())
        asking.prove(challenge)
        pretended = OTHER_SECRET.proof(b"server", asking.hello() + challenge)
        for proof in (pretended, bytes(32)):
            with pytest.raises(PeerRefused, match="secret"):
                asking.check_welcome(made(WELCOME, proof))

    def test_a_server_that_is_another_than_the_one_asked_for(self) -> None:
        asking = client(peer="node-7")
        fields = fields_of(asking.hello())
        fields[4] = "node-1"  # somebody on the way hands it to a true member
        with pytest.raises(PeerRefused, match="another member listens"):
            asking.prove(server().challenge(made(HELLO, *fields)))

    @pytest.mark.parametrize("place", range(2, 6))
    def test_any_change_of_the_hello_on_the_way_is_found(self, place: int) -> None:
        asking = client()
        fields = fields_of(asking.hello())
        fields[place] = b"x" * 32 if place == 5 else "other"
        serving = server(
            task="other" if place == 2 else TASK, me="other" if place == 4 else "node-1"
        )
        challenge = fields_of(serving.challenge(made(HELLO, *fields)))
        challenge[1] = "node-1"
        with pytest.raises(PeerRefused, match="secret"):
            serving.welcome(asking.prove(made(CHALLENGE, *challenge)))

    def test_a_change_of_the_challenge_on_the_way_is_found(self) -> None:
        asking, serving = client(), server()
        version, member, _ = fields_of(serving.challenge(asking.hello()))
        with pytest.raises(PeerRefused, match="secret"):
            serving.welcome(asking.prove(made(CHALLENGE, version, member, b"x" * 32)))


class TestReplay:
    def test_a_recorded_client_is_not_let_in_again(self) -> None:
        recorded = session(client(), server())
        serving = server(nonce=b"t" * 32)
        serving.challenge(recorded["hello"])
        with pytest.raises(PeerRefused, match="secret"):
            serving.welcome(recorded["proof"])
        assert fields_of(serving.refusal)[0] == "secret"

    def test_a_recorded_server_is_not_believed_again(self) -> None:
        recorded = session(client(), server())
        asking = client(nonce=b"d" * 32)
        asking.prove(recorded["challenge"])
        with pytest.raises(PeerRefused, match="secret"):
            asking.check_welcome(recorded["welcome"])

    def test_a_proof_that_is_thrown_back_is_none(self) -> None:
        """Of one who knows nothing, and gives the client its own proof as the server's."""
        asking = client()
        proof = asking.prove(server().challenge(asking.hello()))
        with pytest.raises(BadFrame):
            asking.check_welcome(proof)
        with pytest.raises(PeerRefused, match="secret"):
            asking.check_welcome(made(WELCOME, *fields_of(proof)))

    def test_a_welcome_that_is_thrown_back_is_no_proof(self) -> None:
        recorded = session(client(), server())
        serving = server()  # even with the same nonce
        serving.challenge(recorded["hello"])
        with pytest.raises(PeerRefused, match="secret"):
            serving.welcome(made(PROOF, *fields_of(recorded["welcome"])))

    def test_a_hello_that_is_thrown_back_is_no_challenge(self) -> None:
        asking = client()
        for said in (asking.hello(), made(CHALLENGE, *fields_of(asking.hello()))):
            with pytest.raises(BadFrame):
                asking.prove(said)

    def test_a_client_led_to_its_own_server_is_refused(self) -> None:
        """node-1's question to node-2 is thrown back at node-1, which knows the secret: it would
        answer itself."""
        with pytest.raises(PeerRefused, match="another member listens"):
            server(me="node-1").challenge(client(peer="node-2").hello())

    def test_a_proof_for_one_member_is_nothing_to_another(self) -> None:
        """A member that is asked can't use the question to be believed by the next."""
        asking = client(peer="node-1")
        theirs = server(me="node-2", nonce=b"u" * 32)
        fields = fields_of(asking.hello())
        fields[4] = "node-2"
        challenge = fields_of(theirs.challenge(made(HELLO, *fields)))
        challenge[1] = "node-1"
        proof = asking.prove(made(CHALLENGE, *challenge))
        with pytest.raises(PeerRefused, match="secret"):
            theirs.welcome(proof)

    def test_a_proof_is_tried_once(self) -> None:
        asking, serving = client(), server()
        proof = asking.prove(serving.challenge(asking.hello()))
        with pytest.raises(PeerRefused):
            serving.welcome(made(PROOF, bytes(32)))
        with pytest.raises(BadFrame):
            serving.welcome(proof)


class TestOrder:
    def test_nothing_is_welcome_before_the_challenge(self) -> None:
        recorded = session(client(), server())
        with pytest.raises(BadFrame):
            server().welcome(recorded["proof"])
        with pytest.raises(BadFrame):
            client().check_welcome(recorded["welcome"])

    @pytest.mark.parametrize("name", ["challenge", "proof", "welcome"])
    def test_a_server_takes_nothing_else_for_a_hello(self, name: str) -> None:
        serving = server()
        with pytest.raises(BadFrame):
            serving.challenge(session(client(), server())[name])
        assert serving.refusal == b""

    def test_a_request_is_not_heard_before_the_proof(self) -> None:
        asking, serving = client(), server()
        with pytest.raises(BadFrame):
            serving.challenge(encode_request(1, Ping()))
        serving.challenge(asking.hello())
        with pytest.raises(BadFrame):
            serving.welcome(encode_request(1, Ping()))

    def test_a_client_can_not_refuse(self) -> None:
        serving = server()
        serving.challenge(client().hello())
        with pytest.raises(BadFrame):
            serving.welcome(made(REFUSED, "secret", 1, 1))

    def test_frames_have_no_number(self) -> None:
        fields = fields_of(client().hello())
        with pytest.raises(BadFrame):
            server().challenge(frame(lead_of(HELLO, len(fields)), 1, fields))  # type: ignore[arg-type]

    def test_a_refusal_for_no_reason(self) -> None:
        for fields in (("bad weather", 1, 1), ("x" * 500, 1, 1), (b"secret", 1, 1), ("secret",)):
            with pytest.raises(BadFrame):
                client().prove(made(REFUSED, *fields))


class TestBounds:
    def test_no_more_than_a_small_frame_is_announced(self) -> None:
        frame = client().hello()
        assert bytes_that_follow(frame) == len(frame) - PREFIX_BYTES
        for header, bulk in ((MAX_HANDSHAKE_BYTES - PREFIX_BYTES + 1, 0), (1 << 31, 0), (50, 1)):
            prefix = header.to_bytes(4, "little") + bulk.to_bytes(4, "little") + bytes(8)
            with pytest.raises(BadFrame):
                bytes_that_follow(prefix)

    def test_frames_that_are_cut_or_longer(self) -> None:
        frames = session(client(), server())
        for said in frames.values():
            for wrong in (*(said[:length] for length in range(len(said))), said + b"\0"):
                for read in (client().prove, server().challenge, client().check_welcome):
                    with pytest.raises(BadFrame):
                        read(wrong)

    @pytest.mark.parametrize("name", ["hello", "challenge", "proof", "welcome"])
    def test_any_flipped_bit_is_found(self, name: str) -> None:
        frames = session(client(), server())

        def play(said: bytes) -> None:
            asking, serving = client(), server()
            serving.challenge(said if name == "hello" else frames["hello"])
            asking.prove(said if name == "challenge" else frames["challenge"])
            serving.welcome(said if name == "proof" else frames["proof"])
            asking.check_welcome(said if name == "welcome" else frames["welcome"])

        play(frames[name])
        for bit in range(8 * len(frames[name])):
            damaged = bytearray(frames[name])
            damaged[bit >> 3] ^= 1 << (bit & 7)
            with pytest.raises(BadFrame):
                play(bytes(damaged))

    @pytest.mark.parametrize(
        ("place", "values"),
        [
            (0, [None, True, -1, 1.0, 1 << 16, "1"]),
            (1, [None, True, -1, 1.0, 1 << 16, "1"]),
            (2, [None, True, 1, b"imagenet", "x\ny", "x" * 256, "ü" * 128]),
            (3, [None, True, 1, b"node-2", "x\ny", "x" * 256, "ü" * 128]),
            (4, [None, True, 1, b"node-1", "", "x\n", "two words", "x" * 65]),
            (5, [None, True, 1, "c" * 32, b"", b"c" * 31, b"c" * 33]),
        ],
    )
    def test_a_hello_out_of_bounds(self, place: int, values: list[object]) -> None:
        for value in values:
            fields = fields_of(client().hello())
            fields[place] = value
            serving = server()
            with pytest.raises(BadFrame):
                serving.challenge(made(HELLO, *fields))
            assert serving.refusal == b""

    @pytest.mark.parametrize("count", range(6))
    def test_a_hello_of_too_few_fields(self, count: int) -> None:
        with pytest.raises(BadFrame):
            server().challenge(made(HELLO, *fields_of(client().hello())[:count]))

    @pytest.mark.parametrize(
        "fields",
        [
            (4, "node-1", b"s" * 32),
            (0, "node-1", b"s" * 32),
            (True, "node-1", b"s" * 32),
            (1, "node 1", b"s" * 32),
            (1, b"node-1", b"s" * 32),
            (1, "node-1", b"s" * 31),
            (1, "node-1", "s" * 32),
            (1, "node-1"),
        ],
    )
    def test_a_challenge_out_of_bounds(self, fields: tuple[object, ...]) -> None:
        with pytest.raises(BadFrame):
            client().prove(made(CHALLENGE, *fields))

    @pytest.mark.parametrize("proof", [b"", b"x" * 31, b"x" * 33, "x" * 32, None, 0])
    def test_a_proof_out_of_bounds(self, proof: object) -> None:
        asking, serving = client(), server()
        asking.prove(serving.challenge(asking.hello()))
        with pytest.raises(BadFrame):
            serving.welcome(made(PROOF, proof))
        with pytest.raises(BadFrame):
            asking.check_welcome(made(WELCOME, proof))

    @pytest.mark.parametrize(
        "make",
        [
            lambda: client(nonce=b"short"),
            lambda: client(task="x" * 256),
            lambda: client(peer=""),
            lambda: server(me="two words"),
            lambda: server(nonce=b""),
        ],
    )
    def test_what_would_be_refused_is_not_made(self, make: Callable[[], object]) -> None:
        with pytest.raises(BadFrame):
            make()

    @given(st.binary(max_size=300), st.sampled_from([HELLO, CHALLENGE, PROOF, WELCOME, REFUSED]))
    def test_bytes_are_a_frame_or_refused(self, data: bytes, kind: int) -> None:
        asking, serving = client(), server()
        for said in (data, made(kind, data), made(kind, 1, 1, data, data, data, data)):
            for read in (serving.challenge, asking.prove, serving.welcome, asking.check_welcome):
                with pytest.raises((BadFrame, PeerRefused)):
                    read(said)


def test_neither_secret_nor_proof_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    settings = PeerSettings(TASK, SECRET, StaticPeers((PeerAddress("10.0.0.1", 7000),)))
    again = pickle.loads(pickle.dumps(settings))
    assert again.secret == SECRET
    asking, serving = client(), server()
    frames = session(asking, serving)
    shown = [repr(again), str(again), f"{settings}", repr(SECRET), repr(asking), repr(serving)]
    logging.getLogger("dieselfs.test").warning("%s %r", again, SECRET)
    for wrong in (client(OTHER_SECRET), client(task="cifar"), client(peer="node-9")):
        refusing = server()
        try:
            refusing.welcome(wrong.prove(refusing.challenge(wrong.hello())))
        except PeerRefused as error:
            shown += [repr(error), str(error), str(error.hint), *traceback.format_exception(error)]
    try:
        asking.check_welcome(made(WELCOME, bytes(32)))
    except PeerRefused as error:
        shown += [repr(error), *traceback.format_exception(error)]
    text = "\n".join([*shown, caplog.text])
    proofs = [fields_of(frames[name])[0] for name in ("proof", "welcome")]
    for hidden in (SECRET.value, OTHER_SECRET.value, *proofs):
        assert isinstance(hidden, bytes)
        assert hidden.hex() not in text
        assert repr(hidden)[2:-1] not in text
    assert "TaskSecret()" in text
    assert "do not know the same secret" in text
