"""Names that an attacker can choose to make a hash table slow."""

import itertools


def colliding_names(count):
    """Returns texts of 16 characters with the same std::hash (libstdc++'s hash does not use a secret)."""
    mask, multiplier = (1 << 64) - 1, 0xC6A4A7935BD1E995
    inverse = pow(multiplier, -1, 1 << 64)
    seed, target, names = 0xC70F6907 ^ (16 * multiplier & mask), 0x0123456789ABCDEF, []

    def mix(value):
        return value ^ value >> 47
    for i in itertools.count():
        first = f"{i:08d}".encode()
        state = mix(int.from_bytes(first, "little") * multiplier & mask) * multiplier & mask
        state = (seed ^ state) * multiplier & mask
        second = mix((state ^ target) * inverse & mask) * inverse & mask
        name = first + second.to_bytes(8, "little")
        if name.isascii() and name.decode().isprintable():
            names.append(name.decode())
            if len(names) == count:
                return names
