"""Which addresses a delivery may connect to: those of the public internet, unless the operator says otherwise.

What is checked is the address that is connected to, in the moment it is connected to. A name that resolves to another
address than it did a second ago, and a number that is written in a curious way, change nothing.
"""

from __future__ import annotations

import errno
import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

AddressInfo = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]
"""What `getaddrinfo` returns: family, type, protocol, name, and the address to connect to."""

_NOT_PUBLIC_V4: Final = (
    IPv4Network("168.63.129.16/32"),  # a cloud answers its own machines there, and nobody else
    IPv4Network("192.0.0.0/24"),  # protocols' own, some clouds' metadata among them
    IPv4Network("192.88.99.0/24"),  # relays into IPv6, which are no more
)
_NOT_PUBLIC_V6: Final = IPv6Network("3fff::/20")  # documentation
"""What Python's own list calls public, or has called so."""

_UNICAST: Final = IPv6Network("2000::/3")
_TRANSLATED: Final = IPv6Network("64:ff9b::/96")


class AddressRefused(PermissionError):
    """The address to connect to is none of the public internet."""

    def __init__(self) -> None:
        super().__init__(errno.EACCES, "the address is not public")


def is_public(address: str) -> bool:
    """Tell whether an address, as text, is one of the public internet.

    Loopback, private, shared, link-local (where clouds keep their metadata), multicast, reserved and documentation
    addresses are not; nor is an IPv6 address that stands for such an IPv4 one.
    """
    number = ip_address(address)
    if isinstance(number, IPv6Address):
        return _is_public_v6(number)
    return _is_public_v4(number)


def _is_public_v4(number: IPv4Address) -> bool:
    return (
        number.is_global
        and not number.is_multicast
        and not number.is_reserved
        and not any(number in network for network in _NOT_PUBLIC_V4)
    )


def _is_public_v6(number: IPv6Address) -> bool:
    if number.ipv4_mapped is not None:
        return _is_public_v4(number.ipv4_mapped)
    if number in _TRANSLATED:
        return _is_public_v4(IPv4Address(number.packed[-4:]))
    if number.sixtofour is not None:
        return _is_public_v4(number.sixtofour)
    return number in _UNICAST and number not in _NOT_PUBLIC_V6 and number.is_global


def public_socket(info: AddressInfo) -> socket.socket:
    """Return the socket with which an address is about to be connected to; raise `AddressRefused`."""
    family, kind, protocol, _, target = info
    if family not in (socket.AF_INET, socket.AF_INET6) or not is_public(str(target[0])):
        raise AddressRefused
    return socket.socket(family, kind, protocol)
