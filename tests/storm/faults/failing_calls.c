/* Calls of the C library that fail as a disk does: loaded into a command by LD_PRELOAD.

   STORM_FOLDER   only files below this folder
   STORM_EVERY    one call in so many fails, on average
   STORM_SEED     of the choice; each process adds its id's order by its own count of calls
   STORM_ERRNO    the error
   STORM_LOG      gets one line for each call that failed

   write, pwrite, writev and fsync find the name of a descriptor in /proc/self/fd; the others get the name. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_ulong calls;

static int is_below(const char *path) {
    const char *folder = getenv("STORM_FOLDER");
    return folder && strncmp(path, folder, strlen(folder)) == 0;
}

/* Whether this call fails; sets errno and writes the log. */
static int fails(const char *call, const char *path) {
    const char *every = getenv("STORM_EVERY");
    if (!every || !path || !is_below(path)) return 0;
    uint64_t x = strtoull(getenv("STORM_SEED"), NULL, 10) * 0x9E3779B97F4A7C15u + atomic_fetch_add(&calls, 1) + (uint64_t)getpid() * 7919;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x ^= x >> 31;
    if (x % strtoull(every, NULL, 10)) return 0;
    char line[PATH_MAX + 64];
    int length = snprintf(line, sizeof line, "%s %s\n", call, path);
    int log = syscall(SYS_openat, AT_FDCWD, getenv("STORM_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log >= 0) {
        syscall(SYS_write, log, line, (size_t)length);
        syscall(SYS_close, log);
    }
    errno = atoi(getenv("STORM_ERRNO"));
    return 1;
}

static int descriptor_fails(const char *call, int descriptor) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return fails(call, path);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int descriptor, const void *data, size_t count) {
    return descriptor > 2 && descriptor_fails("write", descriptor) ? -1 : NEXT(write)(descriptor, data, count);
}
ssize_t pwrite64(int descriptor, const void *data, size_t count, off64_t offset) {
    return descriptor_fails("pwrite", descriptor) ? -1 : NEXT(pwrite64)(descriptor, data, count, offset);
}
ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    return descriptor_fails("writev", descriptor) ? -1 : NEXT(writev)(descriptor, parts, count);
}
ssize_t read(int descriptor, void *data, size_t count) {
    return descriptor > 2 && descriptor_fails("read", descriptor) ? -1 : NEXT(read)(descriptor, data, count);
}
int fsync(int descriptor) { return descriptor_fails("fsync", descriptor) ? -1 : NEXT(fsync)(descriptor); }
int rename(const char *from, const char *to) { return fails("rename", to) ? -1 : NEXT(rename)(from, to); }
int link(const char *from, const char *to) { return fails("link", to) ? -1 : NEXT(link)(from, to); }
int unlink(const char *path) { return fails("unlink", path) ? -1 : NEXT(unlink)(path); }
int mkdir(const char *path, mode_t mode) { return fails("mkdir", path) ? -1 : NEXT(mkdir)(path, mode); }

#define OPEN(name)                                                                   \
    int name(const char *path, int flags, ...) {                                     \
        va_list more;                                                                \
        va_start(more, flags);                                                       \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;      \
        va_end(more);                                                                \
        return fails("open", path) ? -1 : NEXT(name)(path, flags, mode);             \
    }
OPEN(open)
OPEN(open64)
