// Preloaded into a process: writes down every change to files below a folder, in order, for power_cuts.py.
//
// A record is: kind (1 byte), inode, offset and length of the data (8 bytes each), lengths of two paths (4 bytes each),
// then the paths and the data. Kinds: C create, T truncate, W write, S sync, R rename, L link, U unlink, D mkdir,
// X rmdir. It is appended in one write, after the change itself was made.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char under[4096];
static int out = -1;

__attribute__((visibility("default"))) void record_below(const char *folder, const char *log) {
  snprintf(under, sizeof under, "%s", folder);
  out = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

__attribute__((constructor)) static void begin(void) {
  const char *folder = getenv("RECORD_BELOW"), *log = getenv("RECORD_TO");
  if (folder && log) record_below(folder, log);
}

#define REAL(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))

static int is_below(const char *path) {
  size_t length = strlen(under);
  return out >= 0 && !strncmp(path, under, length) && (!path[length] || path[length] == '/');
}

// The absolute path of a name at a folder's descriptor; 0 where it is not below.
static int absolute(int at, const char *name, char *path) {
  char link[64];
  if (out < 0) return 0;
  if (name[0] == '/') {
    snprintf(path, 4096, "%s", name);
    return is_below(path);
  }
  if (at == AT_FDCWD) {
    if (!getcwd(path, 3000)) return 0;
  } else {
    snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    ssize_t n = readlink(link, path, 3000);
    if (n < 0) return 0;
    path[n] = 0;
  }
  size_t length = strlen(path);
  snprintf(path + length, 4096 - length, "/%s", name);
  return is_below(path);
}

// The inode of an open file or folder below; 0 for any other.
static uint64_t inode(int fd) {
  char link[64], path[4096];
  struct stat about;
  if (out < 0 || fd == out || fstat(fd, &about) || !(S_ISREG(about.st_mode) || S_ISDIR(about.st_mode))) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return is_below(path) ? about.st_ino : 0;
}

static void note(char kind, uint64_t ino, uint64_t offset, const char *a, const char *b, const void *data, uint64_t size) {
  struct __attribute__((packed)) {
    char kind;
    uint64_t ino, offset, size;
    uint32_t a, b;
  } head = {kind, ino, offset, size, a ? strlen(a) : 0, b ? strlen(b) : 0};
  struct iovec parts[4] = {{&head, sizeof head}, {(void *)a, head.a}, {(void *)b, head.b}, {(void *)data, size}};
  if (syscall(SYS_writev, out, parts, 4) < 0) abort();
}

static int opened(int fd, const char *path, int flags, int was_there) {
  struct stat about;
  if (fd < 0 || fstat(fd, &about) || !S_ISREG(about.st_mode)) return fd;
  if (!was_there) note('C', about.st_ino, 0, path, 0, 0, 0);
  if (was_there && (flags & O_TRUNC)) note('T', about.st_ino, 0, 0, 0, 0, 0);
  return fd;
}

#define MODE                        \
  mode_t mode = 0;                  \
  if (flags & (O_CREAT | __O_TMPFILE)) { \
    va_list rest;                   \
    va_start(rest, flags);          \
    mode = va_arg(rest, mode_t);    \
    va_end(rest);                   \
  }
#define OPEN(name)                                                                            \
  int name(const char *given, int flags, ...) {                                               \
    char path[4096];                                                                          \
    MODE if (!(flags & (O_CREAT | O_TRUNC)) || !absolute(AT_FDCWD, given, path)) return REAL(name)(given, flags, mode); \
    int was_there = !access(path, F_OK);                                                      \
    return opened(REAL(name)(given, flags, mode), path, flags, was_there);                    \
  }
#define OPENAT(name)                                                                          \
  int name(int at, const char *given, int flags, ...) {                                       \
    char path[4096];                                                                          \
    MODE if (!(flags & (O_CREAT | O_TRUNC)) || !absolute(at, given, path)) return REAL(name)(at, given, flags, mode); \
    int was_there = !access(path, F_OK);                                                      \
    return opened(REAL(name)(at, given, flags, mode), path, flags, was_there);                \
  }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)

static off_t place(int fd) {
  struct stat about;
  if (fcntl(fd, F_GETFL) & O_APPEND) return fstat(fd, &about) ? 0 : about.st_size;
  return lseek(fd, 0, SEEK_CUR);
}

ssize_t write(int fd, const void *data, size_t size) {
  uint64_t ino = inode(fd);
  off_t at = ino ? place(fd) : 0;
  ssize_t done = REAL(write)(fd, data, size);
  if (ino && done > 0) note('W', ino, at, 0, 0, data, done);
  return done;
}

static ssize_t wrote(int fd, const void *data, off_t at, ssize_t done) {
  uint64_t ino = inode(fd);
  if (ino && done > 0) note('W', ino, at, 0, 0, data, done);
  return done;
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return wrote(fd, data, at, REAL(pwrite)(fd, data, size, at)); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { return wrote(fd, data, at, REAL(pwrite64)(fd, data, size, at)); }

// What a copy inside the kernel put there, read again.
static ssize_t copied(int fd, uint64_t ino, off_t at, ssize_t done) {
  char link[64];
  if (!ino || done <= 0) return done;
  char *data = malloc(done);
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  int again = REAL(open)(link, O_RDONLY);
  if (!data || again < 0 || pread(again, data, done, at) != done) abort();
  note('W', ino, at, 0, 0, data, done);
  close(again);
  free(data);
  return done;
}
ssize_t sendfile(int to, int from, off_t *at, size_t size) {
  uint64_t ino = inode(to);
  off_t begin = ino ? place(to) : 0;
  return copied(to, ino, begin, REAL(sendfile)(to, from, at, size));
}
ssize_t sendfile64(int to, int from, off64_t *at, size_t size) {
  uint64_t ino = inode(to);
  off_t begin = ino ? place(to) : 0;
  return copied(to, ino, begin, REAL(sendfile64)(to, from, at, size));
}
ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *there, size_t size, unsigned flags) {
  uint64_t ino = inode(to);
  off_t begin = !ino ? 0 : there ? *there : place(to);
  return copied(to, ino, begin, REAL(copy_file_range)(from, at, to, there, size, flags));
}

#define LENGTH(name, type)                          \
  int name(int fd, type length) {                   \
    uint64_t ino = inode(fd);                       \
    int failed = REAL(name)(fd, length);            \
    if (ino && !failed) note('T', ino, length, 0, 0, 0, 0); \
    return failed;                                  \
  }
LENGTH(ftruncate, off_t) LENGTH(ftruncate64, off64_t)

#define SYNC(name)                                  \
  int name(int fd) {                                \
    uint64_t ino = inode(fd);                       \
    int failed = REAL(name)(fd);                    \
    if (ino && !failed) note('S', ino, 0, 0, 0, 0, 0); \
    return failed;                                  \
  }
SYNC(fsync) SYNC(fdatasync)

static int moved(char kind, int at, const char *a, int bt, const char *b, int failed) {
  char from[4096], to[4096];
  int is_from = absolute(at, a, from), is_to = absolute(bt, b, to);
  if (!failed && (is_from || is_to)) note(kind, 0, 0, from, to, 0, 0);
  return failed;
}
int rename(const char *a, const char *b) { return moved('R', AT_FDCWD, a, AT_FDCWD, b, REAL(rename)(a, b)); }
int renameat(int at, const char *a, int bt, const char *b) { return moved('R', at, a, bt, b, REAL(renameat)(at, a, bt, b)); }
int renameat2(int at, const char *a, int bt, const char *b, unsigned flags) { return moved('R', at, a, bt, b, REAL(renameat2)(at, a, bt, b, flags)); }
int link(const char *a, const char *b) { return moved('L', AT_FDCWD, a, AT_FDCWD, b, REAL(link)(a, b)); }
int linkat(int at, const char *a, int bt, const char *b, int flags) { return moved('L', at, a, bt, b, REAL(linkat)(at, a, bt, b, flags)); }

static int gone(char kind, int at, const char *name, int failed) {
  char path[4096];
  if (!failed && absolute(at, name, path)) note(kind, 0, 0, path, 0, 0, 0);
  return failed;
}
int unlink(const char *name) { return gone('U', AT_FDCWD, name, REAL(unlink)(name)); }
int rmdir(const char *name) { return gone('X', AT_FDCWD, name, REAL(rmdir)(name)); }
int unlinkat(int at, const char *name, int flags) { return gone(flags & AT_REMOVEDIR ? 'X' : 'U', at, name, REAL(unlinkat)(at, name, flags)); }

static int made(int at, const char *name, int failed) {
  char path[4096];
  struct stat about;
  if (!failed && absolute(at, name, path) && !stat(path, &about)) note('D', about.st_ino, 0, path, 0, 0, 0);
  return failed;
}
int mkdir(const char *name, mode_t mode) { return made(AT_FDCWD, name, REAL(mkdir)(name, mode)); }
int mkdirat(int at, const char *name, mode_t mode) { return made(at, name, REAL(mkdirat)(at, name, mode)); }
