"""Whether four groups of digits are a version, a numbered section or an object identifier: no address.

The words and signs in the 80 bytes before the groups decide, in this order:

1. A word such as version, release, section or RFC: version 1.2.3.4, versions prior to 1.2.3.4, § 8.1.2.31. 2. from or to,
behind a word such as upgrade: upgrade from 12.1.0.1 to 12.1.0.2. 3. A name that ends in a word of addresses makes an
address: ip == 8.8.8.8, primary_dns, serverAddress. 4. An operator of requirements: numpy==1.2.3.4, (>= 1.2.3.4), ~>
4.2.7.1. 5. A name with version in it or of an object identifier: AssemblyVersion("1.2.3.4"), OID_NAME = "2.5.4.41". 6.
Groups of two digits at most, which one address in fifty has: directly behind a name (Git 1.4.2.1), in brackets behind it
   (rails (4.2.7.1)), in quotes behind one in quotes (gem "rails", "4.2.7.1"), and behind `^`, `~` and `// `. A name with a dot
   is a host.

Others stay addresses: an address that remains harms a person, a version that is replaced harms a line of code.
"""

from typing import Any

import numpy as np

from datapipe.kernels import inline
from datapipe.kernels.redact.ascii import LETTER, NAME, QUOTES, WALL, follows_word, is_among, is_in, packed

_MAX_NAME_BYTES, _MAX_SIGNS = 40, 8
_MAX_WORDS = 6
_DOT, _SLASH, _SPACE, _TAB, _COMMA, _OPEN, _EQUALS, _LESS, _GREATER, _TILDE, _BANG, _CARET, _UNDERSCORE = (
    ord(sign) for sign in "./ \t,(=<>~!^_"
)
_NUMBERED = packed(
    "v ver vers version versions release releases rev revision revisions build builds firmware update driver edition section "
    "sections sec sect chapter clause article appendix annex para paragraph paragraphs figure fig table oid isbn doi rfc"
)
_FILLERS = packed("number no is was to and or from of the than prior before after least")
_UPGRADES = packed("upgrade upgrades upgraded upgrading downgrade downgrades downgraded downgrading bump bumps bumped bumping")
_FROM_TO = packed("from to and or")
_ADDRESSED = packed(
    "ip ips ipv address addresses addr host hosts hostname server servers dns gateway router proxy node client peer resolver "
    "nameserver nameservers subnet network range source src destination dst dest remote local machine interface eth inet ping "
    "telnet ssh curl traceroute dig nslookup whois block ban banned blocked allow allowed deny denied connect connected "
    "connecting resolve resolved resolves point points pointing visit visited user login logged email contact"
)
_GRAMMAR = packed(
    "from to at via on in is was are be and or by for of the with this that use uses using used set since like as eg ie not if "
    "then than between through behind into"
)
_BEFORE_ADDRESSES = np.append(_ADDRESSED, _GRAMMAR)
_VERSION, _OBJECT_ID, _OID = (np.frombuffer(word, np.uint8) for word in (b"version", b"objectid", b"oid"))


@inline
def is_version(data, begin, start, stop) -> Any:
    """Whether the four groups [start, stop) are no address."""
    if follows_word(data, begin, start, _NUMBERED, _FILLERS, WALL, 3) or _is_upgrade(data, begin, start):
        return True
    last, name_stop = start, start  # of the signs between a name and the groups
    while last > begin and (data[last - 1] == _SPACE or data[last - 1] == _TAB):
        last -= 1
    name_stop = last
    while name_stop > begin and start - name_stop < _MAX_SIGNS and _is_sign(data[name_stop - 1]):
        name_stop -= 1
    name = name_stop
    while name > begin and name_stop - name < _MAX_NAME_BYTES and is_in(data[name - 1], NAME):
        name -= 1
    if name < name_stop and is_among(
        data, _last_word(data, name, name_stop), _word_stop(data, name, name_stop), _BEFORE_ADDRESSES
    ):
        return False
    if _ends_in_operator(data, begin, last) or _names_a_version(data, name, name_stop):
        return True
    if not _is_short(data, start, stop):
        return False
    before = data[last - 1] if last > begin else np.uint8(0)
    is_note = last < start and before == _SLASH and last - 1 > begin and data[last - 2] == _SLASH
    return is_note or before == _CARET or before == _TILDE or _stands_behind_name(data, name, name_stop, last, start)


@inline
def _is_sign(byte) -> Any:
    is_bracket = byte == _OPEN or byte == _LESS or byte == _GREATER
    is_operator = byte == _EQUALS or byte == _TILDE or byte == _BANG or byte == _CARET
    return is_in(byte, QUOTES) or is_bracket or is_operator or byte == _COMMA or byte == _SPACE or byte == _TAB or byte == 0x3A


@inline
def _is_upgrade(data, begin, start) -> Any:
    """Whether from or to stands before the groups, and a word such as upgrade before it, with no word of addresses between."""
    j, low = start, max(begin, start - 2 * _MAX_NAME_BYTES)
    for number in range(_MAX_WORDS):
        while j > low and not is_in(data[j - 1], LETTER):
            if is_in(data[j - 1], WALL) or (number == 0 and data[j - 1] != _SPACE):
                return False
            j -= 1
        stop = j
        while j > low and is_in(data[j - 1], LETTER):
            j -= 1
        if number > 0 and is_among(data, j, stop, _UPGRADES):
            return True
        if j == stop or (number == 0 and not is_among(data, j, stop, _FROM_TO)) or is_among(data, j, stop, _ADDRESSED):
            return False
    return False


@inline
def _word_stop(data, name, stop) -> Any:
    """The stop of a name without the digits and signs at its end."""
    while stop > name and not is_in(data[stop - 1], LETTER):
        stop -= 1
    return stop


@inline
def _last_word(data, name, stop) -> Any:
    """The start of the last word of a name: of ip in remote_ip, of Address in serverAddress."""
    j = _word_stop(data, name, stop)
    while j > name and is_in(data[j - 1], LETTER):
        j -= 1
        if data[j] < 0x60 and j > name and data[j - 1] > 0x60:
            break
    return j


@inline
def _ends_in_operator(data, begin, last) -> Any:
    """Whether the bytes before `last` are one of == >= <= ~= != and ~>."""
    if last - 2 < begin:
        return False
    first, second = data[last - 2], data[last - 1]
    is_compared = first == _EQUALS or first == _LESS or first == _GREATER or first == _TILDE or first == _BANG
    return (second == _EQUALS and is_compared) or (second == _GREATER and first == _TILDE)


@inline
def _contains(data, start, stop, word) -> Any:
    """The offset behind a word in a span, ignoring case; 0 where it is not there."""
    for j in range(start, stop - len(word) + 1):
        is_equal = True
        for k in range(len(word)):
            is_equal &= data[j + k] | 0x20 == word[k]
        if is_equal:
            return j + len(word)
    return 0


@inline
def _names_a_version(data, name, stop) -> Any:
    """Whether a name contains version or objectid, or oid as a whole word."""
    after = _contains(data, name, stop, _OID)
    is_word = after > 0 and (after == stop or data[after] == _UNDERSCORE)
    is_word = is_word and (after - len(_OID) == name or data[after - len(_OID) - 1] == _UNDERSCORE)
    return is_word or _contains(data, name, stop, _VERSION) > 0 or _contains(data, name, stop, _OBJECT_ID) > 0


@inline
def _is_short(data, start, stop) -> Any:
    """Whether no group has more than two digits."""
    num_digits = 0
    for j in range(start, stop):
        num_digits = num_digits + 1 if data[j] != _DOT else 0
        if num_digits > 2:
            return False
    return True


@inline
def _stands_behind_name(data, name, name_stop, last, start) -> Any:
    """Whether groups follow a name without a dot: at once, in brackets, or in quotes behind quotes and a comma."""
    if name_stop - name < 2 or not is_in(data[name], LETTER):
        return False
    for j in range(name, name_stop):
        if data[j] == _DOT:
            return False
    num_commas, num_quotes, num_opened = 0, 0, 0
    for j in range(name_stop, start):
        num_commas += data[j] == _COMMA
        num_quotes += is_in(data[j], QUOTES)
        num_opened += data[j] == _OPEN
    num_spaces = 0
    for j in range(name_stop, start):
        num_spaces += data[j] == _SPACE or data[j] == _TAB
    num_others = start - name_stop - num_spaces
    is_bare = num_others == 0 and num_spaces > 0
    is_bracketed = num_opened == 1 and num_others == 1 and data[start - 1] == _OPEN
    return (
        is_bare or is_bracketed or (num_commas == 1 and num_quotes == 2 and num_others == 3 and is_in(data[name_stop], QUOTES))
    )
