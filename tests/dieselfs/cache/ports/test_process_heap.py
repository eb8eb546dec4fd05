"""The heap of a server: one arena for all threads, and free pages that go back.

Each test has a process of its own, since a process keeps the arenas that it has.
"""

import subprocess
import sys

COUNTED = """
import ctypes, sys, threading
from dieselfs.cache.ports.process_heap import release_free_pages, use_one_arena

KIB, MIB = 1 << 10, 1 << 20

def anonymous_bytes():
    with open("/proc/self/status") as status:
        [line] = [line for line in status if line.startswith("RssAnon")]
    return int(line.split()[1]) << 10

def arenas():
    libc = ctypes.CDLL(None)
    libc.open_memstream.restype = ctypes.c_void_p
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    return text.value.count(b"<heap nr=")

def allocate_in_threads(count):
    barrier, kept = threading.Barrier(count), []
    def allocate():
        blocks = [bytes(32 * KIB) for _ in range(64)]
        barrier.wait()
        kept.append(blocks[-1])  # it pins what lies below
    threads = [threading.Thread(target=allocate) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return kept
"""


def output(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", COUNTED + code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_threads_share_one_arena() -> None:
    used = "kept = allocate_in_threads(16); print(arenas())"
    assert int(output(used)) > 1  # as glibc does by itself
    assert output(f"use_one_arena(); {used}") == "1"


def test_free_pages_go_back() -> None:
    before, after = map(
        int,
        output(
            "use_one_arena(); base = anonymous_bytes(); kept = allocate_in_threads(16);"
            "print(anonymous_bytes() - base); release_free_pages(); print(anonymous_bytes() - base)"
        ).split(),
    )
    assert before > 16 << 20
    assert after < 4 << 20


def test_free_pages_go_back_regularly() -> None:
    left = output("""
import time
from dieselfs.cache.ports import process_heap

process_heap._RELEASE_EVERY_S = 0.05
process_heap.keep_heap_small()
base = anonymous_bytes()
kept = allocate_in_threads(16)
until = time.monotonic() + 60
while anonymous_bytes() - base > 4 * MIB and time.monotonic() < until:
    time.sleep(0.01)
print(anonymous_bytes() - base)
""")
    assert int(left) < 4 << 20
