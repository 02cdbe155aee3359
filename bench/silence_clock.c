/* Adds offsets to the wall clock and to the boot clock of every program that loads it (/etc/ld.so.preload): the two numbers of
   seconds in the file OFFSET, which is mapped, so that a program that runs for long follows. The monotonic clock, by which programs wait, is left
   alone. cc -O2 -shared -fPIC -o silence_clock.so silence_clock.c -ldl */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define OFFSET "/usr/local/lib/silence/offset"

static volatile int64_t none[2], *offsets = none;

__attribute__((constructor)) static void map_offset(void)
{
    int fd = open(OFFSET, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    void *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED)
        offsets = page;
    close(fd);
}

int clock_gettime(clockid_t clock, struct timespec *moment)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, moment);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        moment->tv_sec += offsets[0];
    if (!failed && clock == CLOCK_BOOTTIME)
        moment->tv_sec += offsets[1];
    return failed;
}

time_t time(time_t *result)
{
    struct timespec moment;
    clock_gettime(CLOCK_REALTIME, &moment);
    if (result)
        *result = moment.tv_sec;
    return moment.tv_sec;
}

int gettimeofday(struct timeval *result, void *zone)
{
    struct timespec moment;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &moment);
    if (result) {
        result->tv_sec = moment.tv_sec;
        result->tv_usec = moment.tv_nsec / 1000;
    }
    return 0;
}
