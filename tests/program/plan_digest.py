"""Digests of plans: the SHA-256 of a plan's JSON document without Banyan's additions, with the channel types of a thread
block in the order of their names, as compact text with sorted keys."""

import hashlib
import json


def canonical(value):
    if isinstance(value, list):
        return [canonical(item) for item in value]
    if not isinstance(value, dict):
        return value
    # Banyan records the line of the program. MSCCL++ names the rank of some local operands of switch channels, which is
    # the operation's own rank.
    dropped = {"line", "banyan"} | ({"rank"} if "index" in value else set())
    made = {key: canonical(item) for key, item in value.items() if key not in dropped}
    if "ops" in made:  # a channel's number counts the channels of its type
        made.get("channels", []).sort(key=lambda channels: channels["channel_type"])
    return made


def digest(text):
    compact = json.dumps(canonical(json.loads(text)), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(compact.encode()).hexdigest()


def read_digests(path):
    return {name: value for value, name in map(str.split, path.read_text().splitlines())}
