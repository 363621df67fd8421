/*
 * Moves the wall clock of one process, at run time. Preloaded into a server; the file named by PALISADE_CLOCK holds one int64,
 * the microseconds to add. Rewriting these eight bytes in place moves the clock at once.
 *
 * Only the wall clock: timers and poll run on the monotonic one and must go on as they are. No dlsym and no malloc, because
 * the server's allocator may ask for the time before either works (libfaketime hangs there); the real time comes from the
 * system call.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NANOS_PER_SECOND 1000000000LL

static const int64_t no_offset = 0;
static const int64_t *offset_micros = &no_offset;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("PALISADE_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *shared = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (shared != MAP_FAILED) __atomic_store_n(&offset_micros, (const int64_t *)shared, __ATOMIC_RELEASE);
}

static int is_wall_clock(clockid_t clock) {
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && is_wall_clock(clock)) {
        const int64_t *source = __atomic_load_n(&offset_micros, __ATOMIC_ACQUIRE);
        int64_t micros = __atomic_load_n(source, __ATOMIC_RELAXED);
        int64_t nanos = time->tv_nsec + micros % 1000000 * 1000;
        int64_t seconds = time->tv_sec + micros / 1000000;
        /* The remainder of a negative number is negative. */
        if (nanos < 0) nanos += NANOS_PER_SECOND, seconds -= 1;
        if (nanos >= NANOS_PER_SECOND) nanos -= NANOS_PER_SECOND, seconds += 1;
        time->tv_sec = (time_t)seconds;
        time->tv_nsec = (long)nanos;
    }
    return result;
}

int gettimeofday(struct timeval *restrict value, void *restrict zone) {
    struct timespec now;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    if (result == 0) {
        value->tv_sec = now.tv_sec;
        value->tv_usec = now.tv_nsec / 1000;
    }
    return result;
}

time_t time(time_t *copy) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return (time_t)-1;
    if (copy) *copy = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *value, int base) {
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, value) == 0 ? base : 0;
}
