"""Limits on login attempts. An attempt is counted before the password is checked, so that parallel attempts count separately.

Within a quarter of an hour: 5 for a name from one address, 20 from one address, and 50 for a name from all addresses. The last
limit does not apply to an address from which this name has logged in before: strangers cannot lock an operator out of the usual
desk.
"""

from datetime import datetime
from ipaddress import IPv6Address, ip_address

from web.auth.store import Store

WINDOW = 900.0
"""Seconds."""
FOR_BOTH, FOR_ADDRESS, FOR_NAME = 5, 20, 50
_KNOWN = 90 * 86400.0
_LONGEST_NAME = 64


def begin(store: Store, name: str, address: str, now: datetime) -> float:
    """Returns the seconds to wait; 0 to go on: the attempt then counts until `succeeded` is called."""
    limits = (FOR_BOTH, FOR_ADDRESS, FOR_NAME)
    return store.count_attempt(name[:_LONGEST_NAME], network_of(address), now, WINDOW, limits, _KNOWN)


def succeeded(store: Store, name: str, address: str, now: datetime) -> None:
    """Clears the attempts for this name at this address after a correct password, and records the address as known."""
    store.forget_attempts(name, network_of(address), now, _KNOWN)


def network_of(address: str) -> str:
    """Returns the network that counts as one client: the address itself for IPv4, the /64 network for IPv6."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped:
            return str(found.ipv4_mapped)
        return str(IPv6Address(int(found) >> 64 << 64)) + "/64"
    return str(found)
