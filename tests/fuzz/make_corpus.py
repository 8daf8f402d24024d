#!/usr/bin/env python3
"""Writes the hand-made seeds of corpus/: small valid files, and hostile ones.

  LINKBOY_PYTHON make_corpus.py     (needs torch and Pillow; the files are reproducible)

Inputs that the fuzzer found (crash-*, timeout-*, oom-*) are kept in the same folders.
"""
import collections
import gzip
import io
import json
import pathlib
import pickle
import struct
import sys
import zipfile
import zlib

import torch
from PIL import Image

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from colliding_names import colliding_names  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent / "corpus"


def write(target, name, data):
    folder = ROOT / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(bytes(data))


# ---- Pickles -------------------------------------------------------------------------------------


def storage(kind="FloatStorage", key="1"):
    """Returns a pickle that leaves a storage on the stack."""
    return (b"(" + text("storage") + b"ctorch\n" + kind.encode() + b"\n" + text(key) + text("cpu") + b"K\x0ctQ")


def text(value):
    value = value.encode()
    return b"X" + struct.pack("<I", len(value)) + value


def number(value):
    value = value.to_bytes(8, "little", signed=True)
    return b"\x8a\x08" + value


def tensor(offset, sizes, strides, kind="FloatStorage", key="1", dtype=None):
    function = "_rebuild_tensor_v2" if dtype is None else "_rebuild_tensor_v3"
    result = b"ctorch._utils\n" + function.encode() + b"\n(" + storage(kind, key) + number(offset)
    for numbers in (sizes, strides):
        result += b"(" + b"".join(map(number, numbers)) + b"t"
    result += b"\x89ccollections\nOrderedDict\n)R"
    if dtype is not None:
        result += b"ctorch\n" + dtype.encode() + b"\n"
    return result + b"tR"


def in_dict(value, key="w"):
    return b"\x80\x02}" + text(key) + value + b"s."


def colliding_keys(count):
    """Returns integers that c10::Dict's Fibonacci hashing maps to the first slot."""
    inverse = pow(11400714819323198485, -1, 1 << 64)
    keys = []
    for i in range(count):
        key = i * inverse % (1 << 64)
        keys.append(key - (1 << 64) if key >> 63 else key)
    return keys


def hostile_pickles():
    big = (1 << 63) - 1
    yield "recursive_list", b"\x80\x02]q\x00h\x00a."
    yield "recursive_dict", b"\x80\x02}q\x00" + text("a") + b"h\x00s."
    yield "recursive_tuple", b"\x80\x02]q\x00h\x00\x85a."
    yield "deep_lists", b"\x80\x02" + b"]" * 2000 + b"a" * 1999 + b"."
    yield "deep_tuples", b"\x80\x02N" + b"\x85" * 2000 + b"."
    yield "deep_as_allowed", b"\x80\x02N" + b"\x85" * 127 + b"."
    # Each level contains the level below twice: 2^40 values in 200 bytes.
    yield "billion_laughs", b"\x80\x02]q\x00" + b"".join(
        b"]q%c(h%ch%ce" % (i, i - 1, i - 1) for i in range(1, 41)) + b"."
    # Shared containers, which are copied for each use.
    wide = b"\x80\x02}q\x00]q\x01(" + b"h\x00" * 300 + b"e](" + b"h\x01" * 90 + b"e."
    yield "wide_sharing", wide
    yield "huge_string", b"\x80\x02X\xff\xff\xff\xffabc."
    yield "huge_string8", b"\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc."
    yield "huge_memo", b"\x80\x02Nr\xff\xff\xff\xffj\xff\xff\xff\xff\x86."
    yield "unknown_memo", b"\x80\x02j\xfe\xff\xff\xff."
    yield "wide_integer", b"\x80\x02\x8a\xff" + b"\x01" * 255 + b"."
    yield "colliding_keys", (b"\x80\x02}(" + b"".join(number(key) + b"N" for key in colliding_keys(100)) + b"u.")
    yield "colliding_names", (b"\x80\x02}(" + b"".join(text(name) + b"N" for name in colliding_names(50)) + b"u.")
    yield "memo_of_one_bucket", b"\x80\x02}" + b"".join(
        b"r" + struct.pack("<I", i * 1109) for i in range(1100)) + b"h\x00b" * 100 + b"."
    yield "mixed_keys", (b"\x80\x02}(K\x01NX\x01\x00\x00\x00aNG" + struct.pack(">d", float("nan"))
                         + b"NG" + struct.pack(">d", float("nan")) + b"N\x88N\x89NK\x01Nu.")
    yield "odd_items", b"\x80\x02}(K\x01K\x02K\x03u."
    yield "code", b"\x80\x02cos\nsystem\n" + text("true") + b"\x85R."
    yield "build_list", b"\x80\x02]}b."
    yield "no_values", b"\x80\x02."
    yield "below_mark", b"\x80\x02K\x01(a."
    yield "only_marks", b"\x80\x02" + b"(" * 500 + b"t" * 500 + b"."
    yield "negative_offset", in_dict(tensor(-1, [2], [1]))
    yield "huge_offset", in_dict(tensor(big, [1], [1]))
    yield "huge_sizes", in_dict(tensor(0, [1 << 32, 1 << 32], [1, 1]))
    yield "huge_stride", in_dict(tensor(0, [2], [big]))
    yield "negative_stride", in_dict(tensor(1, [2], [-1]))
    yield "empty_huge", in_dict(tensor(0, [0, big], [big, 1]))
    yield "empty_huge2", in_dict(tensor(big // 32, [0, 1 << 31, 1 << 28], [1 << 58, 1 << 28, 1]))
    yield "stride_zero", in_dict(tensor(0, [1 << 20, 1 << 20, 1 << 10], [0, 0, 0]))
    yield "many_dimensions", in_dict(tensor(0, [1] * 64, [1] * 64))
    yield "too_many_dimensions", in_dict(tensor(0, [1] * 65, [1] * 65))
    yield "last_element", in_dict(tensor(11, [1], [1]))
    yield "one_too_far", in_dict(tensor(12, [1], [1]))
    for kind in ("DoubleStorage", "HalfStorage", "BFloat16Storage", "BoolStorage", "ByteStorage",
                 "ComplexDoubleStorage"):
        yield "kind_" + kind, in_dict(tensor(0, [1, 2], [2, 1], kind))
    for dtype in ("uint16", "uint64", "float8_e4m3fn"):
        yield "dtype_" + dtype, in_dict(
            tensor(1, [1], [1], "FloatStorage", dtype=dtype).replace(
                b"ctorch\nFloatStorage", b"ctorch.storage\nUntypedStorage"))


def make_pickles():
    value = {"a": [1, 2.5, None, True, "text"], "b": (1, (2, 3)), 7: {"c": -1, 2.5: 1 << 40}}
    for protocol in (2, 3, 4, 5):
        write("unpickler", f"python_{protocol}", pickle.dumps(value, protocol))
    write("unpickler", "ordered", pickle.dumps(collections.OrderedDict(a=1, b=[2]), 2))
    for name, value in {
        "counter": collections.Counter("aab"), "defaultdict": collections.defaultdict(list, {1: [2]}),
        "set": {1, 2}, "frozenset": frozenset([1]), "bytes": [b"a\xff", b"", bytearray(b"a\xff"), bytearray()],
        "complex": 1 + 2j, "device": [torch.device("cuda", 0), torch.device("cpu")],
        "dtypes": [torch.float32, torch.qint8, torch.strided],
    }.items():
        for protocol in (2, 5):
            write("unpickler", f"value_{name}_{protocol}", pickle.dumps(value, protocol))
    write("unpickler", "copied_list", b"\x80\x02(](" + b"K\x07" * 1000 + b"eq\x01"
          + b"cbuiltins\nset\nq\x02h\x01\x85R" + b"h\x02h\x01\x85R" * 300 + b"t.")
    call = b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\nctorch\nTensor\n("
    part = tensor(0, [2], [1])
    arguments = part[part.index(b"(") + 1:].removesuffix(b"tR")
    write("unpickler", "attributes", call + arguments + b"t}tR.")
    nested = call.replace(b"_utils\n_rebuild_tensor_v2", b"_tensor\n_rebuild_from_type_v2")
    write("unpickler", "attributes_of_attributes", nested + b"t}tR.")
    write("unpickler", "storage", b"\x80\x02" + storage("DoubleStorage") + b".")
    for name, data in hostile_pickles():
        write("unpickler", name, data)


# ---- Zip archives --------------------------------------------------------------------------------


def local(name, data, crc=None, extra=b"", method=0):
    crc = zlib.crc32(data) if crc is None else crc
    return struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, 0, method, 0, 0x21, crc, len(data),
                       len(data), len(name), len(extra)) + name + extra + data


def central(name, crc, size, offset, extra=b"", packed=None, method=0):
    return struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 20, 20, 0, method, 0, 0x21, crc,
                       size if packed is None else packed, size, len(name), len(extra), 0, 0, 0, 0,
                       offset) + name + extra


def end(count, size, offset, comment=b""):
    return struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count, size, offset, len(comment)) + comment


def end64(count, size, offset, at):
    return (struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, size, offset)
            + struct.pack("<IIQI", 0x07064B50, 0, at, 1))


def archive(records, crc=None, zip64=None, edit=None):
    """Returns a zip of `records`. `edit` can change the arguments of each directory entry."""
    body, directory = b"", b""
    for name, data in records:
        name = b"f/" + name
        fields = dict(name=name, crc=zlib.crc32(data) if crc is None else crc, size=len(data), offset=len(body))
        body += local(name, data)
        if edit:
            fields = edit(fields)
        directory += central(**fields)
    tail = end(len(records), len(directory), len(body))
    if zip64:
        size, offset = len(directory), len(body)
        values = dict(count=len(records), size=size, offset=offset, at=offset + size)
        tail = end64(**{**values, **zip64}) + end(0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
    return body + directory + tail


def make_checkpoints():
    plain = [(b"data.pkl", in_dict(tensor(0, [3], [1], key="0"))), (b"byteorder", b"little"),
             (b"data/0", struct.pack("<3f", 1, 2, 3))]
    huge = (1 << 64) - 1

    def change(name=None, **new):
        return lambda fields: ({**fields, **new} if name is None or fields["name"].endswith(name) else fields)

    def extra64(*values):
        data = b"".join(struct.pack("<Q", value) for value in values)
        return struct.pack("<HH", 1, len(data)) + data

    hostile = {
        "plain": archive(plain),
        "zip64": archive(plain, zip64={}),
        "wrong_crc": archive(plain, crc=1),
        "outside_offset": archive(plain, edit=change(b"data/0", offset=0x7FFFFFFF)),
        "other_offset": archive(plain, edit=change(b"data/0", offset=0)),
        "large_size": archive(plain, edit=change(b"data/0", size=0x7FFFFFFF)),
        "size_of_file": archive(plain, edit=change(b"data/0", size=300)),
        "overlap": archive(plain, edit=change(offset=0)),
        "zip64_count": archive(plain, zip64={"count": huge}),
        "zip64_size": archive(plain, zip64={"size": huge}),
        "zip64_offset": archive(plain, zip64={"offset": huge}),
        "zip64_at": archive(plain, zip64={"at": huge}),
        "zip64_count_fits": archive(plain, zip64={"count": huge // 46, "size": huge}),
        "zip64_extra": archive(plain, edit=change(
            b"data/0", size=0xFFFFFFFF, offset=0xFFFFFFFF,
            extra=extra64(huge, huge, huge - 20))),
        "zip64_extra_short": archive(plain, edit=change(b"data/0", size=0xFFFFFFFF, extra=b"\x01\x00\x04\x00abcd")),
        "extra_unended": archive(plain, edit=change(b"data/0", extra=b"\x01\x00\xff\xff")),
        "two_of_one_name": archive([*plain, plain[2]]),
        "deflated_method": archive(plain, edit=change(b"data/0", method=8)),
        "no_records": end(0, 0, 0),
        "no_records_pk": b"PK\x03\x04" + end(0, 0, 0),
        "no_end": archive(plain)[:-22],
        "no_pickle": archive(plain[1:]),
        "long_comment": archive(plain)[:-2] + struct.pack("<H", 300) + b"PK\x05\x06" * 75,
        "big_endian": archive([plain[0], (b"byteorder", b"big"), plain[2]]),
        "script": archive([*plain, (b"constants.pkl", b"\x80\x02).")]),
        "no_folder": archive(plain, edit=lambda f: {**f, "name": f["name"][2:]}),
        "far_tensor": archive([(b"data.pkl", in_dict(tensor(1, [3], [1], key="0"))), *plain[1:]]),
        "bool_2": archive([(b"data.pkl", in_dict(tensor(0, [3], [1], "BoolStorage", "0"))),
                           plain[1], (b"data/0", b"\x00\x01\x02")]),
        # The offset is not a multiple of 8; a mapped tensor has the same one.
        "unaligned": archive([(b"data.pkl", in_dict(tensor(0, [1], [1], "DoubleStorage", "0"))),
                              (b"x", b"odd"), (b"data/0", bytes(8))]),
        "empty": b"",
    }
    keys = b"".join(number(key) + b"N" for key in colliding_keys(100))
    hostile["colliding_keys"] = archive([(b"data.pkl", b"\x80\x02}(" + keys + b"u.")])
    # A key that is stored once and used at every level: the paths of the levels are much longer.
    nested = b"\x80\x02}" + text("k" * 3000) + b"q\x00" + b"}h\x00" * 119 + b"N" + b"s" * 120 + b"."
    hostile["long_key_in_itself"] = archive([(b"data.pkl", nested)])
    deflated = io.BytesIO()
    with zipfile.ZipFile(deflated, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in plain:
            file.writestr(zipfile.ZipInfo("f/" + name.decode()), data, zipfile.ZIP_DEFLATED)
    hostile["deflated"] = deflated.getvalue()
    for name, data in hostile.items():
        write("checkpoint", name, data)

    torch.manual_seed(1)
    shared = torch.arange(6.0)
    for name, value in {
        "torch_state": torch.nn.Linear(3, 2).state_dict(),
        "torch_shared": {"a": shared, "b": shared[2:].view(2, 2).t()},
        "torch_values": {"step": 3, "lr": 0.1, "list": [1, None, "x"], "t": (True, torch.Size([2])),
                         "d": {"x": torch.tensor([1, 2]), "y": torch.empty(0, 3)}},
        "torch_dtypes": {str(dtype): torch.ones(3).to(dtype) for dtype in (
            torch.bool, torch.bfloat16, torch.uint16, torch.complex64, torch.float8_e5m2)},
    }.items():
        data = io.BytesIO()
        torch.save(value, data)
        write("checkpoint", name, data.getvalue())


# ---- Files of PyTorch before 1.6 ----------------------------------------------------------------


def legacy(value, keys=("1",), data=struct.pack("<q12f", 12, *range(12)), version=1001):
    start = [torch.serialization.MAGIC_NUMBER, version, {"little_endian": True}]
    return b"".join(pickle.dumps(part, 2) for part in start) + value + pickle.dumps(list(keys), 2) + data


def legacy_tensor(size, view=b"N", function="_rebuild_tensor_v2"):
    part = storage().removesuffix(b"tQ") + view + b"tQ"
    return (b"ctorch._utils\n" + function.encode() + b"\n(" + part + b"K\x00" + number(size) + b"\x85K\x01\x85"
            + (b"\x89ccollections\nOrderedDict\n)R" if function.endswith("2") else b"") + b"tR")


def make_legacy():
    view = b"(" + text("2") + b"K\x04K\x05t"
    pair = b"](" + text("w") + b"ctorch.nn.parameter\nParameter\n"
    plain = in_dict(legacy_tensor(3))
    for name, data in {
        "plain": legacy(plain),
        "view": legacy(in_dict(legacy_tensor(5, view))),
        "view_outside": legacy(in_dict(legacy_tensor(5, view.replace(b"\x05", b"\x09")))),
        "python_2": legacy(b"\x80\x02ccollections\nOrderedDict\n](" + pair + legacy_tensor(
            3, function="_rebuild_tensor") + b"\x85\x81(\x88\x89Ntbee\x85R."),
        # The same list of pairs is copied again and again.
        "copied_pairs": legacy(b"\x80\x02(](](NNee" + b"q\x00ccollections\nOrderedDict\nq\x01h\x00\x85R"
                               + b"h\x01h\x00\x85R" * 50 + b"t."),
        "no_storages": legacy(b"\x80\x02}.", [], b""),
        "key_is_missing": legacy(plain, [], b""),
        "key_is_unknown": legacy(plain, ["2"]),
        "key_twice": legacy(plain, ["1", "1"]),
        "key_is_a_number": legacy(plain, [1]),
        "fewer_elements": legacy(plain, data=struct.pack("<q3f", 3, 1, 2, 3)),
        "negative_elements": legacy(plain, data=struct.pack("<q", -1)),
        "huge_elements": legacy(plain.replace(b"K\x0c", number(1 << 61)), data=struct.pack("<q", 1 << 61)),
        "cut": legacy(plain)[:-1],
        "no_data": legacy(plain, data=b""),
        "other_version": legacy(plain, version=7),
        "magic_only": pickle.dumps(torch.serialization.MAGIC_NUMBER, 2),
        "name_without_end": legacy(b"\x80\x02c" + b"n" * 200, (), b""),
    }.items():
        write("checkpoint", "legacy_" + name, data)
    for protocol in (2, 4):
        data = io.BytesIO()
        torch.save({"a": torch.ones(3, dtype=torch.uint16), "b": torch.nn.Parameter(torch.ones(2, 2).t())}, data,
                   pickle_protocol=protocol, _use_new_zipfile_serialization=False)
        write("checkpoint", f"legacy_torch_{protocol}", data.getvalue())


# ---- safetensors ---------------------------------------------------------------------------------


def safetensors(header, data=b"", size=None):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header) if size is None else size) + header + data


def entry(dtype, shape, begin, stop):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, stop]}


def make_safetensors():
    two = {"__metadata__": {"format": "pt"}, "a": entry("F32", [2, 2], 0, 16), "b": entry("BOOL", [3], 16, 19)}
    nested = b'{"a":' * 1000 + b"1" + b"}" * 1000
    for name, data in {
        "plain": safetensors(two, bytes(16) + b"\x00\x01\x01"),
        "bool_2": safetensors(two, bytes(16) + b"\x00\x01\x02"),
        "empty": safetensors({}),
        "all_dtypes": safetensors({str(i): entry(dtype, [1], 16 * i, 16 * i + size) for i, (
            dtype, size) in enumerate([("U64", 8), ("C64", 8)])}, bytes(24)),
        "unaligned": safetensors({"a": entry("U8", [1], 0, 1), "b": entry("F64", [1], 1, 9)}, bytes(9)),
        "scalar": safetensors({"a": entry("F16", [], 0, 2)}, bytes(2)),
        "no_elements": safetensors({"a": entry("F32", [0, 1 << 40], 0, 0)}),
        "overflow": safetensors({"a": entry("F32", [1 << 32, 1 << 32], 0, 0)}),
        "overflow_empty": safetensors({"a": entry("F32", [0, 1 << 32, 1 << 32], 0, 0)}),
        "overlap": safetensors({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 2, 6)}, bytes(6)),
        "gap": safetensors({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 6, 10)}, bytes(10)),
        "outside": safetensors({"a": entry("F32", [1 << 20], 0, 1 << 22)}, bytes(8)),
        "backwards": safetensors({"a": entry("F32", [1], 4, 0)}, bytes(4)),
        "trailing": safetensors({"a": entry("F32", [1], 0, 4)}, bytes(5)),
        "huge_header": safetensors(b"{}", size=(1 << 64) - 1),
        "long_header": safetensors(b"{}", size=3),
        "huge_number": safetensors(b'{"a":{"dtype":"F32","shape":[1e999],"data_offsets":[0,4]}}'),
        "huge_integer": safetensors(b'{"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}}'),
        "negative": safetensors(b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}'),
        "nested": safetensors(nested),
        "nested_shape": safetensors(b'{"a":{"shape":' + b"[" * 1500),
        "many_dimensions": safetensors({"a": entry("U8", [1] * 65, 0, 1)}, b"\x00"),
        "twice": safetensors(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
                             b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"\x00"),
        "twice_in_metadata": safetensors(b'{"__metadata__":{"a":"b","a":"c"}}'),
        "not_utf8": safetensors(b'{"\xff\xfe":{}}'),
        "zero_byte": safetensors(b"{}\x00{}"),
        "colliding_metadata": safetensors({"__metadata__": dict.fromkeys(colliding_names(50), "")}),
        "colliding_names": safetensors({name: entry("U8", [0], 0, 0) for name in colliding_names(50)}),
        "escapes": safetensors(b'{"__metadata__":{"\\ud83d\\ude00\\u0000":"\\ud800"}}'),
    }.items():
        write("safetensors", name, data)


# ---- idx -----------------------------------------------------------------------------------------


def idx(sizes, data, magic=None):
    magic = 0x0800 + len(sizes) if magic is None else magic
    return struct.pack(f">{1 + len(sizes)}I", magic, *sizes) + data


def make_idx():
    most = 0xFFFFFFFF
    labels, images = idx([5], bytes(range(5))), idx([2, 3, 2], bytes(range(12)))
    packed = gzip.compress(images, mtime=0)
    # 2 MiB of zeros, compressed to 2 KiB.
    bomb = gzip.compress(idx([most], bytes(2 << 20)), mtime=0)
    for name, data in {
        "labels": labels, "images": images, "labels_gz": gzip.compress(labels, mtime=0),
        "images_gz": packed, "empty": b"", "no_images": idx([0, 28, 28], b""),
        "empty_huge": idx([0, most, most], b""), "empty_huge2": idx([most, most, 0], b""),
        "overflow": idx([most, most, most], b"x"), "large": idx([most, most, 1], b"x"),
        "claims_more": idx([most], b"abc"), "claims_less": idx([1], b"abc"),
        "short_header": idx([2, 3, 2], b"")[:9], "other_magic": idx([2], b"ab", 0x0D01),
        "gz_cut": packed[:-9], "gz_wrong_crc": packed[:-8] + bytes(4) + packed[-4:],
        "gz_wrong_length": packed[:-4] + bytes(4), "gz_trailing": packed + b"tail",
        "gz_two_members": gzip.compress(images[:9], mtime=0) + gzip.compress(images[9:], mtime=0),
        "gz_in_gz": gzip.compress(packed, mtime=0), "gz_magic_only": b"\x1f\x8b",
        "gz_bomb": bomb,
        "gz_bomb_that_fits": gzip.compress(idx([1 << 20], bytes(1 << 20)), mtime=0),
    }.items():
        write("idx", name, data)


# ---- Images --------------------------------------------------------------------------------------


def make_images():
    values = bytes((17 * i * i) % 256 for i in range(4 * 19 * 13))

    def write_image(name, mode, file_format="jpeg", **options):
        made_as = "RGB" if mode in ("P", "1") else mode
        image = Image.frombytes(made_as, (19, 13), values[:len(made_as) * 19 * 13]).convert(mode)
        stream = io.BytesIO()
        image.save(stream, file_format, **options)
        write("image", name, stream.getvalue())
        return stream.getvalue()

    for subsampling in (0, 1, 2):
        jpeg = write_image(f"jpeg_{subsampling}", "RGB", subsampling=subsampling)
    progressive = write_image("jpeg_progressive", "RGB", progressive=True)
    write_image("jpeg_restart", "RGB", restart_marker_blocks=1)
    write_image("jpeg_grey", "L")
    write_image("jpeg_cmyk", "CMYK")
    for mode in ("RGB", "RGBA", "LA", "L", "P", "1"):
        png = write_image(f"png_{mode.lower()}", mode, "png")
    write_image("png_key", "RGB", "png", transparency=(1, 2, 3))
    write_image("png_p2", "P", "png", bits=2)
    write("image", "png_cut", png[:-14])
    write("image", "jpeg_cut", jpeg[:-40])
    write("image", "jpeg_huge", jpeg.replace(struct.pack(">HH", 13, 19), b"\xff\xdc\xff\xdc", 1))
    write("image", "progressive_scan_twice", progressive[:-2] + progressive[progressive.rindex(b"\xff\xda"):])
    write("image", "empty", b"")
    write("image", "text", b"neither")


make_pickles()
make_checkpoints()
make_legacy()
make_safetensors()
make_idx()
make_images()
