// Memory that a thread works in, kept from call to call.

#pragma once

#include <stdlib.h>

#define HERE __attribute__((always_inline)) inline

namespace {

inline long up(long n, long to) { return (n + to - 1) / to * to; }

struct Room {
  char *at = nullptr;
  long size = 0;
  char *of(long wanted) {
    if (wanted > size) {
      free(at);
      at = static_cast<char *>(aligned_alloc(64, static_cast<size_t>(wanted)));
      size = at ? wanted : 0;
      if (!at) abort();
    }
    return at;
  }
  ~Room() { free(at); }
};

thread_local Room room_of_thread;

}  // namespace
