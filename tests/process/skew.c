/* Loaded before libc: the wall clock is wrong by SKEW_SECONDS, clocks for durations are not. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    const char *seconds = getenv("SKEW_SECONDS");
    if (!failed && clock == CLOCK_REALTIME && seconds)
        now->tv_sec += atol(seconds);
    return failed;
}
