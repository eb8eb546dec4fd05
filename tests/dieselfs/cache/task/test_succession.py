"""A process that leads if nobody does asks for a master when the one before has gone, and not
otherwise."""

from dieselfs.cache.task.succession import Succession
from dieselfs.errors import MasterGone
from tests.eventually import eventually


class Member:
    def __init__(self) -> None:
        self.is_led = True
        self.elections = self.failures_left = 0

    def has_master(self) -> bool:
        return self.is_led

    def master(self) -> object:
        if self.failures_left:
            self.failures_left -= 1
            raise MasterGone("not yet")
        self.elections += 1
        self.is_led = True
        return self


def test_each_master_that_goes_is_followed_by_one() -> None:
    member = Member()
    succession = Succession(member, look_s=0.001)
    try:
        for number, failures in enumerate((0, 3, 1), 1):
            member.failures_left = failures
            member.is_led = False
            eventually(lambda: member.is_led, "another master")
            assert (member.elections, member.failures_left) == (number, 0)
    finally:
        succession.close(10)
    member.is_led = False
    assert member.elections == 3
