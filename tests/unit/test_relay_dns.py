"""Names in the box: the answers of its name server, byte for byte, and the addresses that stand for names."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impyard.box.names import FIRST_ADDRESS, LAST_ADDRESS, AddressBook, answer, dotted, host_name

A, NS, PTR, TXT, AAAA, SRV, HTTPS, ANY = 1, 2, 12, 16, 28, 33, 65, 255


def encode(name: bytes) -> bytes:
    return b"".join(bytes([len(label)]) + label for label in name.split(b".")) + b"\0"


def ask(name: bytes = b"a.test", kind: int = A, *, group: int = 1, flags: int = 0x0100, count: int = 1) -> bytes:
    return struct.pack(">HHHHHH", 0x1234, flags, count, 0, 0, 0) + encode(name) + struct.pack(">HH", kind, group)


def code(reply: bytes | None) -> int:
    assert reply is not None
    ident, flags, _questions, _answers, authorities, additions = struct.unpack_from(">HHHHHH", reply)
    assert ident == 0x1234 and flags & 0x8000 and (authorities, additions) == (0, 0)
    return int(flags & 0xF)


def address_of(name: str) -> str | None:
    return "127.64.0.9" if name.endswith("test") else None


def test_an_a_question_is_answered_with_the_address_of_its_name() -> None:
    query = ask(b"A.Test")
    assert answer(query, address_of) == (
        struct.pack(">HHHHHH", 0x1234, 0x8180, 1, 1, 0, 0)
        + query[12:]  # the question as it was asked, upper case too
        + b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\x7f\x40\0\x09"
    )


def test_the_name_is_looked_up_in_lower_case_and_without_its_last_dot() -> None:
    asked: list[str] = []
    answer(ask(b"WWW.Example-1.x_y.TEST"), lambda name: asked.append(name) or "127.64.0.1")  # type: ignore[func-returns-value]
    assert asked == ["www.example-1.x_y.test"]


def test_localhost_is_the_box_itself() -> None:
    for name in (b"localhost", b"LocalHost", b"app.localhost"):
        reply = answer(ask(name), lambda _name: pytest.fail("looked up"))
        assert reply is not None and reply.endswith(b"\x7f\0\0\1")


def test_an_aaaa_question_has_no_data_so_that_clients_take_the_a() -> None:
    reply = answer(ask(kind=AAAA), address_of)
    assert code(reply) == 0
    assert reply is not None and struct.unpack_from(">HH", reply, 4) == (1, 0)


@pytest.mark.parametrize("kind", [NS, PTR, TXT, SRV, HTTPS, ANY, 0, 65535])
def test_other_types_are_not_implemented(kind: int) -> None:
    assert code(answer(ask(kind=kind), lambda _name: pytest.fail("looked up"))) == 4


def test_other_classes_and_opcodes_are_not_implemented() -> None:
    assert code(answer(ask(group=3), address_of)) == 4  # CHAOS
    assert code(answer(ask(flags=0x2800), address_of)) == 4  # UPDATE


def test_a_name_without_an_address_is_a_server_failure() -> None:
    assert code(answer(ask(b"full.example"), address_of)) == 2


@pytest.mark.parametrize(
    "name",
    [b"a b.test", b"a\r\nX: y.test", b"a\0.test", b"a:80.test", b"a@b.test", b"a/b.test", b"\xc3\xbc.test", b"*.test"],
)
def test_a_name_that_no_host_has_does_not_exist(name: bytes) -> None:
    assert code(answer(ask(name), lambda _name: pytest.fail("looked up"))) == 3


def test_the_root_does_not_exist() -> None:
    query = struct.pack(">HHHHHH", 0x1234, 0x0100, 1, 0, 0, 0) + b"\0" + struct.pack(">HH", A, 1)
    assert code(answer(query, lambda _name: pytest.fail("looked up"))) == 3


@pytest.mark.parametrize(
    "question",
    [
        b"",  # nothing after the header
        b"\1a\4test",  # no end of the name
        b"\1a\4test\0",  # no type
        b"\1a\4test\0\0\1\0",  # half a class
        b"\x40" + b"a" * 64 + b"\0\0\1\0\1",  # a label of 64 bytes
        b"\xc0\x0c\0\1\0\1",  # a pointer to itself
        b"\x3f" + b"a" * 10 + b"\0\0\1\0\1",  # a label longer than the message
        (b"\x3f" + b"a" * 63) * 4 + b"\0\0\1\0\1",  # a name of 256 bytes
    ],
)
def test_a_broken_question_is_a_format_error(question: bytes) -> None:
    header = struct.pack(">HHHHHH", 0x1234, 0x0100, 1, 0, 0, 0)
    assert code(answer(header + question, lambda _name: pytest.fail("looked up"))) == 1


@pytest.mark.parametrize("count", [0, 2, 65535])
def test_not_exactly_one_question_is_a_format_error(count: int) -> None:
    assert code(answer(ask(count=count), address_of)) == 1


@pytest.mark.parametrize("message", [b"", b"\0", b"\x12\x34\1\0\0\1\0\0\0\0\0", ask(flags=0x8180)])
def test_what_is_no_question_gets_no_answer(message: bytes) -> None:
    assert answer(message, address_of) is None


def test_the_longest_name_is_answered() -> None:
    name = b".".join([b"a" * 63, b"b" * 63, b"c" * 63, b"d" * 56, b"test"])
    assert len(name) == 253
    assert code(answer(ask(name), address_of)) == 0


@given(st.binary(max_size=600))
def test_any_bytes_get_a_well_formed_answer_or_none(message: bytes) -> None:
    reply = answer(message, address_of)
    if reply is not None:
        assert reply[:2] == message[:2] and reply[2] & 0x80 and len(reply) <= len(message) + 16


@given(st.lists(st.binary(max_size=70), max_size=8))
def test_a_host_name_is_safe_in_a_request_line(labels: list[bytes]) -> None:
    name = host_name(labels)
    if name is not None:
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.") and 0 < len(name) <= 253


def add(book: AddressBook, name: str) -> str:
    return book.add(name)[0]


def test_each_name_has_one_address_and_the_address_leads_back() -> None:
    book = AddressBook(10)
    assert [add(book, name) for name in ("a", "b", "c")] == ["127.64.0.1", "127.64.0.2", "127.64.0.3"]
    assert book.find("b") == "127.64.0.2" and book.name_of("127.64.0.2") == "b"
    assert book.find("x") is None and book.name_of("127.64.0.4") is None


def test_a_full_book_forgets_the_name_that_was_unused_for_longest() -> None:
    book = AddressBook(3)
    for name in "abc":
        book.add(name)
    book.find("a")
    assert book.add("d") == ("127.64.0.4", "127.64.0.2")
    assert book.find("b") is None and book.name_of("127.64.0.2") is None
    assert book.find("a") == "127.64.0.1" and len(book) == 3


def test_an_address_is_not_given_to_another_name_before_the_range_is_used_up() -> None:
    book = AddressBook(2, first=FIRST_ADDRESS, last=FIRST_ADDRESS + 4)
    given_out = [add(book, str(number)) for number in range(5)]
    assert len(set(given_out)) == 5
    assert add(book, "next") == given_out[0]


def test_a_name_that_could_not_be_served_is_forgotten() -> None:
    book = AddressBook(2)
    address = add(book, "a")
    book.remove("a")
    assert book.find("a") is None and book.name_of(address) is None and len(book) == 0
    book.remove("a")


@given(st.lists(st.integers(0, 12), max_size=60))
def test_live_names_never_share_an_address(names: list[int]) -> None:
    book = AddressBook(4, first=FIRST_ADDRESS, last=FIRST_ADDRESS + 5)
    live: dict[str, str] = {}
    for name in map(str, names):
        if book.find(name) is None:
            address, dropped = book.add(name)
            live = {key: value for key, value in live.items() if value != dropped}
            live[name] = address
        assert len(set(live.values())) == len(live) <= 4
        assert all(book.name_of(value) == key for key, value in live.items())


def test_the_range_is_loopback_but_not_where_programs_serve_each_other() -> None:
    assert dotted(FIRST_ADDRESS) == "127.64.0.1" and dotted(LAST_ADDRESS) == "127.127.255.254"


def test_a_book_larger_than_its_range_is_a_mistake() -> None:
    with pytest.raises(ValueError):
        AddressBook(5, first=FIRST_ADDRESS, last=FIRST_ADDRESS + 4)
