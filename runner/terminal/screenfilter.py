"""What of a box's terminal output may reach the terminal of a person. Pure; holds what is incomplete between pieces.

A terminal obeys what it is sent: it fills the clipboard (OSC 52), types answers into its own input (DSR, DECRQSS, title
reports, ENQ), loads fonts, draws over other windows. So this is a list of what may pass, and the list is what pi's own
UI needs (pi-tui 1.6.0): text, SGR colours, cursor movement, erasing, a few modes. All else goes, first of all every
string sequence (OSC, DCS, APC, PM, SOS), 8-bit controls, and shifts of the character set. Of what a terminal answers
two pass, which pi asks to learn how keys are encoded, and only so often. What passes is always whole and in its
shortest form, so that a terminal sees nothing half, whatever the box sends and wherever a read cuts it.

    text     any Unicode but controls and the marks that turn the direction of writing
    control  BS HT LF CR
    CSI      n A..H n;m d f  (cursor)   n J n K (erase, not the scrollback)   n L M P X @ S T (shift)   list m (colour)
             ? modes h l of MODES       >4;n m (key encoding)     > n u, < n u (kitty's keyboard stack, its own pushes)
             c and ?u (the two questions)

Text behind the alternate screen is kept apart (`last_words`): there pi names a command that goes on without a box.
"""

from __future__ import annotations

import codecs
import re

# DEC private modes that pi switches: line wrap, cursor, mouse (press, drag, move), focus, mouse coordinates, alternate
# screen, bracketed paste, synchronized output. Those are on from the start.
MODES = frozenset((7, 25, 1000, 1002, 1003, 1004, 1006, 1049, 2004, 2026))
ON_AT_START = frozenset((7, 25))
ALTERNATE = 1049
QUESTIONS = 8  # of each kind; pi asks once, and again after its UI was left for an editor
MAX_PUSHES = 4  # pi makes one; a terminal keeps few, and drops that of who had it before
MAX_LAST_WORDS = 4096

_TOKEN = re.compile(
    # Not the controls, and not the marks of writing direction, which can show one text as another.
    r"(?P<text>[^\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]+|[\b\t\n\r])"
    r"|(?:\x1b\[|\x9b)(?P<csi>[ -?]{0,256}[@-~])"
    r"|(?P<string>\x1b[P\]X^_]|[\x90\x98\x9d-\x9f])"
    r"|\x1b[ -/]{0,8}[0-Z\\`-~]"  # any other sequence: dropped
    r"|(?P<wait>(?:\x1b\[|\x9b)[ -?]{0,256}\Z|\x1b[ -/]{0,8}\Z)"
    r"|[\s\S]"  # any other character: dropped
)
_STRING_END = re.compile(r"[\x07\x18\x1a\x1b\x9c]")
_NUMBER = r"[0-9]{0,5}"
_PLAIN = re.compile(rf"{_NUMBER}[A-HLMPX@ST]|{_NUMBER}(?:;{_NUMBER})?[Hf]|{_NUMBER}d|[012]?[JK]")
_COLOUR = re.compile(rf"{_NUMBER}(?:[;:]{_NUMBER})*m")
_MODE = re.compile(r"\?([0-9]{1,5}(?:;[0-9]{1,5})*)([hl])")
_PUSH = re.compile(r">([0-9]{1,2})u")
_POP = re.compile(r"<([0-9]{0,2})u")
_KEYS = re.compile(r">4(?:;([012]))?m")


class ScreenFilter:
    """`feed` it pieces of output and write what it returns; `undo` then leaves the terminal as it was.

    `ascii_only` is for a terminal that is not in UTF-8, where a part of a character could be an 8-bit control.
    """

    def __init__(self, *, ascii_only: bool = False) -> None:
        self._ascii_only = ascii_only
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._in_string = False
        self._asked = {"c": 0, "?u": 0}
        self._changed: set[int] = set()  # modes that are not as they were at the start
        self._pushes = {False: 0, True: 0}  # kitty keeps a stack for each of the two screens
        self._keys_changed = False
        self._touched: set[int] = set()  # modes that were ever switched
        self._left_alternate = False
        self.asked = False  # whether the terminal has something to answer
        self.last_words = ""  # what came behind the alternate screen, whole characters

    def feed(self, data: bytes) -> bytes:
        """What of `data`, and of what was held back before, may be written now."""
        text = self._rest + self._decoder.decode(data)
        self._rest = ""
        out: list[str] = []
        place = 0
        while place < len(text):
            if self._in_string:
                end = _STRING_END.search(text, place)
                if end is None:
                    break
                self._in_string = False
                # An escape begins a new sequence; when that is the string's own end it is dropped like others.
                place = end.start() if end[0] == "\x1b" else end.end()
                continue
            token = _TOKEN.match(text, place)
            assert token is not None
            kind = token.lastgroup
            if kind == "wait":
                self._rest = token[0]
                break
            if kind == "text" and self._left_alternate:
                self.last_words = (self.last_words + token[0])[:MAX_LAST_WORDS]
            elif kind == "text":
                out.append(token[0])
            elif kind == "csi" and self._may_pass(token["csi"]):
                out.append(f"\x1b[{token['csi']}")
            elif kind == "string":
                self._in_string = True
            place = token.end()
        return "".join(out).encode("ascii", "replace") if self._ascii_only else "".join(out).encode()

    def undo(self, *, torn: bool = False) -> bytes:
        """What takes back the modes that are on: written when the box is over, however it ended. With `torn`, not all
        that `feed` returned was written, so every mode that was ever switched is."""
        changed = self._touched if torn else self._changed
        out = []
        if 2026 in changed:
            out.append("\x1b[?2026l")
        if self._keys_changed:
            out.append("\x1b[>4m")
        is_alternate = ALTERNATE in changed
        if self._pushes[True]:  # that stack is reached from its screen only
            out.append(f"\x1b[?{ALTERNATE}h" * (not is_alternate) + f"\x1b[<{self._pushes[True]}u")
            is_alternate = True
        out += [f"\x1b[?{mode}l" for mode in sorted(changed - ON_AT_START - {2026, ALTERNATE})]
        if is_alternate:
            out.append(f"\x1b[?{ALTERNATE}l")
        if self._pushes[False]:
            out.append(f"\x1b[<{self._pushes[False]}u")
        out += [f"\x1b[?{mode}h" for mode in sorted(changed & ON_AT_START)]
        self._changed.clear()
        self._touched.clear()
        self._pushes = {False: 0, True: 0}
        self._keys_changed = False
        return "".join([*out, "\x1b[0m"]).encode()

    def _may_pass(self, csi: str) -> bool:
        """Whether a control sequence is on the list. One that is changes what there is to undo."""
        if _PLAIN.fullmatch(csi) or _COLOUR.fullmatch(csi):
            return True
        if csi in self._asked:
            self._asked[csi] += 1
            self.asked = True
            return self._asked[csi] <= QUESTIONS
        if match := _MODE.fullmatch(csi):
            return self._switch([int(number) for number in match[1].split(";")], match[2] == "h")
        screen = ALTERNATE in self._changed
        if match := _PUSH.fullmatch(csi):
            if int(match[1]) > 31 or self._pushes[screen] >= MAX_PUSHES:
                return False
            self._pushes[screen] += 1
            return True
        if match := _POP.fullmatch(csi):
            count = int(match[1] or 1)
            if not 0 < count <= self._pushes[screen]:
                return False  # what lies below is of who had the terminal before
            self._pushes[screen] -= count
            return True
        if _KEYS.fullmatch(csi):
            self._keys_changed = True  # also by what takes it back: somebody else may have had it on
            return True
        return False

    def _switch(self, modes: list[int], on: bool) -> bool:
        if not MODES.issuperset(modes):
            return False
        self._touched.update(modes)
        for mode in modes:
            if mode == ALTERNATE:
                self._left_alternate = not on and (ALTERNATE in self._changed or self._left_alternate)
            if on == (mode in ON_AT_START):
                self._changed.discard(mode)
            else:
                self._changed.add(mode)
        return True
