# SPDX-License-Identifier: Apache-2.0
"""xxh3.py - XXH3-64 of 17 to 128 and of more than 240 bytes, seed 0, after its specification.

It is what endpoints call the checksum of a tensor; so computed here, a tensor that wsync reads or
hashes wrongly cannot be right by the same mistake.
"""
import struct

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")
P32_1, P32_2, P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
P64_1, P64_2, P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P64_4, P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
M32, M64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
STRIPE, LANES, STEP = 64, struct.Struct("<8Q"), 8
BLOCK = (len(SECRET) - STRIPE) // STEP  # stripes of one
KEYS = [LANES.unpack_from(SECRET, STEP * i) for i in range(BLOCK + 1)]


def accumulate(acc, lanes, keys):
    for i in range(8):
        key = lanes[i] ^ keys[i]
        acc[i ^ 1] += lanes[i]
        acc[i] += (key & M32) * (key >> 32)
    for i in range(8):
        acc[i] &= M64


def scramble(acc):
    for i, key in enumerate(KEYS[BLOCK]):
        acc[i] = ((acc[i] ^ acc[i] >> 47 ^ key) * P32_1) & M64


def fold(a, b):
    product = a * b
    return product & M64 ^ product >> 64


def avalanche(value):
    value &= M64
    value = (value ^ value >> 37) * 0x165667919E3779F9 & M64
    return value ^ value >> 32


def merge(acc, size):
    keys = LANES.unpack_from(SECRET, 11)
    return avalanche(size * P64_1 + sum(fold(acc[i] ^ keys[i], acc[i + 1] ^ keys[i + 1])
                                        for i in range(0, 8, 2)))


def short(data):
    """From both ends to the middle, 16 bytes each."""
    size, value = len(data), len(data) * P64_1
    for i in range((size - 1) // 32 + 1):
        for at, key in ((16 * i, 32 * i), (size - 16 * i - 16, 32 * i + 16)):
            a, b = struct.unpack_from("<2Q", data, at)
            k, m = struct.unpack_from("<2Q", SECRET, key)
            value += fold(a ^ k, b ^ m)
    return avalanche(value)


def xxh3_64(data):
    """The digest in hexadecimal digits."""
    size = len(data)
    if 16 < size <= 128:
        return "%016x" % short(data)
    assert size > 240, "%d bytes: this form is not written here" % size
    acc = [P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1]
    for n in range((size - 1) // STRIPE):
        accumulate(acc, LANES.unpack_from(data, n * STRIPE), KEYS[n % BLOCK])
        if n % BLOCK == BLOCK - 1:
            scramble(acc)
    accumulate(acc, LANES.unpack_from(data, size - STRIPE),
               LANES.unpack_from(SECRET, len(SECRET) - STRIPE - 7))
    return "%016x" % merge(acc, size)
