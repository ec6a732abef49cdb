"""Deliveries go to the public internet: whatever an address is called, it is the address itself that counts."""

from __future__ import annotations

import socket

import pytest

from ledger.events.addresses import AddressRefused, is_public, public_socket

PUBLIC = ("93.184.215.14", "8.8.8.8", "172.15.255.255", "172.32.0.1", "2606:4700::6810:84e5", "2a00:1450:4003::200e")
PRIVATE = (
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",  # noqa: S104 - refused, not bound
    "0.1.2.3",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "100.64.0.1",
    "100.100.100.200",
    "169.254.169.254",
    "168.63.129.16",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::8.8.8.8",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::127.0.0.1",
    "64:ff9b::a00:1",
    "64:ff9b:1::1",
    "2002:7f00:1::1",
    "2002:a00:1::",
    "2001::1",
    "2001:db8::1",
    "3fff::1",
    "100::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address: str) -> None:
    assert is_public(address)


def test_a_public_address_may_be_written_as_another_kind() -> None:
    assert is_public("::ffff:8.8.8.8")
    assert is_public("64:ff9b::8.8.8.8")


@pytest.mark.parametrize("address", PRIVATE)
def test_all_others_are_refused(address: str) -> None:
    assert not is_public(address)
    kind = socket.AF_INET6 if ":" in address else socket.AF_INET
    with pytest.raises(AddressRefused):
        public_socket((kind, socket.SOCK_STREAM, 6, "", (address, 443)))


@pytest.mark.parametrize("spelling", ["127.1", "0x7f000001", "2130706433", "017700000001", "localhost"])
def test_a_curious_spelling_is_refused_for_what_it_stands_for(spelling: str) -> None:
    for info in socket.getaddrinfo(spelling, 443, type=socket.SOCK_STREAM):
        with pytest.raises(AddressRefused):
            public_socket(info)


def test_a_socket_of_a_public_address_is_an_ordinary_one() -> None:
    with public_socket((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", 443))) as made:
        assert (made.family, made.type) == (socket.AF_INET, socket.SOCK_STREAM)


def test_nothing_but_the_internet() -> None:
    with pytest.raises(AddressRefused):
        public_socket((socket.AF_UNIX, socket.SOCK_STREAM, 0, "", ("8.8.8.8", 0)))
