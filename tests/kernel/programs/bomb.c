// bomb FORKS LIMIT NAME: every process forks as fast as it can, until that has worked FORKS times.
// Root becomes nobody's user first, who may have LIMIT processes. A few never go by themselves.
#define _GNU_SOURCE
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define STUBBORN 5

static struct {
    atomic_long tickets, forked, refused;
} *all;

static void stay(void)
{
    setsid();
    for (;;)
        pause();
}

/* 0: it is the child now. */
static int split(void)
{
    if (atomic_fetch_sub(&all->tickets, 1) <= 0) {
        atomic_fetch_add(&all->tickets, 1);
        return -1;
    }
    pid_t child = fork();
    if (child > 0)
        atomic_fetch_add(&all->forked, 1);
    if (child < 0) {
        atomic_fetch_add(&all->tickets, 1);
        atomic_fetch_add(&all->refused, 1);
    }
    return child;
}

static void explode(void)
{
    for (int turn = 0;; turn++) {
        int child = split();
        if (child < 0 || (!child && turn % 2))
            _exit(0);
    }
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 1;
    long forks = atol(argv[1]);
    uid_t somebody = (1 << 20) + getpid();
    struct rlimit limit = {atol(argv[2]), atol(argv[2])};
    if (!geteuid() && (setrlimit(RLIMIT_NPROC, &limit) || setgroups(0, NULL) ||
                       setresgid(somebody, somebody, somebody) ||
                       setresuid(somebody, somebody, somebody)))
        return 1;
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        return 1;
    signal(SIGCHLD, SIG_IGN);
    atomic_store(&all->tickets, forks);
    for (int n = 0; n < STUBBORN; n++)
        if (!split())
            stay();
    while (atomic_load(&all->forked) < forks) {
        if (!split())
            explode();
        sched_yield();
    }
    printf("%ld\n", atomic_load(&all->refused));
    return 0;
}
